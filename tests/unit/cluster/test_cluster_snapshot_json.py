import json
import math
from types import MappingProxyType
from typing import Any

import pytest

from collm.cluster.snapshot_json import from_json, to_json
from collm.errors import DataError
from factories.snapshots import make_snapshot


def plain() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(json.dumps(to_json(make_snapshot())))
    return value


def test_a_snapshot_survives_its_way_through_json() -> None:
    snapshot = make_snapshot(url="http://r", taken_at_s=5.0, quality=MappingProxyType({"a": 0.5}))
    value = json.loads(json.dumps(to_json(snapshot)))
    assert from_json(value, url="http://r", taken_at_s=5.0) == snapshot


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
