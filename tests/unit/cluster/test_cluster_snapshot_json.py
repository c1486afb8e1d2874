import json
import math
from types import MappingProxyType
from typing import Any

import pytest

from collm.cluster.snapshot_json import from_json, to_json
from collm.errors import DataError
from collm.types import (
    BASE,
    AdapterTotals,
    Evaluation,
    GradientSums,
    LearningState,
    ReplicaTotals,
    VersionId,
    WatchState,
)
from factories.snapshots import make_snapshot


def plain() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(json.dumps(to_json(make_snapshot())))
    return value


def test_a_snapshot_survives_its_way_through_json() -> None:
    snapshot = make_snapshot(url="http://r", taken_at_s=5.0, quality=MappingProxyType({"a": 0.5}))
    value = json.loads(json.dumps(to_json(snapshot)))
    assert from_json(value, url="http://r", taken_at_s=5.0) == snapshot


def test_totals_survive_their_way_through_json() -> None:
    gradient = GradientSums(num_steps=2, num_differences=6, spread=1e-5, square=0.25)
    totals = ReplicaTotals(
        serve_s=1e6, num_gaps=3, adapters={"a": AdapterTotals(num_steps=2, gradient=gradient)}
    )
    snapshot = make_snapshot(totals=totals)
    value = json.loads(json.dumps(to_json(snapshot)))
    assert from_json(value, url="", taken_at_s=0.0).totals == totals


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        (("serve_s",), -1.0),
        (("serve_s",), math.nan),
        (("num_gaps",), 1.5),
        (("adapters",), []),
        (("adapters", "a", "num_met"), -1),
        (("adapters", "a", "gradient", "spread"), math.inf),
        (("adapters", "a", "gradient", "unheard_of"), 1),
    ],
)
def test_a_bad_total_is_refused_and_named(path: tuple[str, ...], bad: object) -> None:
    snapshot = make_snapshot(totals=ReplicaTotals(adapters={"a": AdapterTotals()}))
    value = json.loads(json.dumps(to_json(snapshot)))
    inner = value["totals"]
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = bad
    with pytest.raises(DataError, match="totals." + ".".join(path)):
        from_json(value, url="", taken_at_s=0.0)


def watching_snapshot():
    one, two = VersionId("a@1"), VersionId("a@2")
    return make_snapshot(
        watched={
            "a": WatchState(
                active=two,
                previous=one,
                capital=3.5,
                num_samples=4,
                active_loss=2.0,
                previous_loss=1.5,
            ),
            "b": WatchState(active=VersionId("b@1"), previous=BASE, capital=1.0, num_samples=0),
        }
    )


def test_what_is_found_on_feedback_survives_its_way_through_json() -> None:
    snapshot = watching_snapshot()
    value = json.loads(json.dumps(to_json(snapshot)))
    assert from_json(value, url="", taken_at_s=0.0).watched == snapshot.watched


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("active", ""),
        ("previous", None),
        ("capital", math.inf),
        ("capital", -1.0),
        ("num_samples", 1.5),
        ("active_loss", math.nan),
        ("is_finite", 1),
        ("unheard_of", 1),
    ],
)
def test_a_bad_finding_on_feedback_is_refused_and_named(field: str, bad: object) -> None:
    value = json.loads(json.dumps(to_json(watching_snapshot())))
    value["watched"]["a"][field] = bad
    with pytest.raises(DataError, match=f"watched.a.{field}"):
        from_json(value, url="", taken_at_s=0.0)


def learning_snapshot():
    evaluation = Evaluation(num_tokens=700, loss=1.5, num_samples=12)
    return make_snapshot(
        learning={
            "a": LearningState(
                tokens_per_step=512, micro_batch_tokens=256, is_joint=True, evaluation=evaluation
            ),
            "b": LearningState(tokens_per_step=768, micro_batch_tokens=1024, is_joint=False),
        }
    )


def test_how_adapters_learn_survives_its_way_through_json() -> None:
    snapshot = learning_snapshot()
    value = json.loads(json.dumps(to_json(snapshot)))
    assert from_json(value, url="", taken_at_s=0.0).learning == snapshot.learning


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        (("tokens_per_step",), 0),
        (("is_joint",), 1),
        (("evaluation", "loss"), math.inf),
        (("evaluation", "num_samples"), 0),
        (("evaluation", "unheard_of"), 1),
    ],
)
def test_a_bad_learning_state_is_refused_and_named(path: tuple[str, ...], bad: object) -> None:
    value = json.loads(json.dumps(to_json(learning_snapshot())))
    inner = value["learning"]["a"]
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = bad
    with pytest.raises(DataError, match="learning.a." + ".".join(path)):
        from_json(value, url="", taken_at_s=0.0)


def test_what_only_the_front_knows_is_not_sent() -> None:
    assert not {"url", "taken_at_s"} & to_json(make_snapshot()).keys()


@pytest.mark.parametrize("name", sorted(to_json(make_snapshot())))
def test_a_missing_field_is_named(name: str) -> None:
    value = plain()
    del value[name]
    with pytest.raises(DataError, match=name):
        from_json(value, url="", taken_at_s=0.0)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("replica_id", ""),
        ("num_running", -1),
        ("num_running", 1.5),
        ("num_waiting", True),
        ("num_context_tokens", 2**80),
        ("block_size", 0),
        ("credit_share", 1.5),
        ("credit_share", math.nan),
        ("bytes_per_token", 0.0),
        ("ttft_s", 0.0),
        ("tpot_s", math.inf),
        ("names", "base"),
        ("names", [""]),
        ("active", {"a": 3}),
        ("quality", {"a": math.inf}),
        ("quality_noise", {"a": -0.1}),
        ("max_model_len", None),
        ("is_draining", 0),
        ("step_coefficients", [1, 2]),
        ("step_coefficients", {"constant_s": 1.0}),
        ("unheard_of", 1),
    ],
)
def test_a_bad_value_is_refused_and_named(name: str, bad: object) -> None:
    with pytest.raises(DataError, match=name):
        from_json({**plain(), name: bad}, url="", taken_at_s=0.0)


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_what_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(DataError, match="snapshot"):
        from_json(value, url="", taken_at_s=0.0)
