import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from collm.errors import AdapterError, UnknownAdapterError
from collm.store.data_folder import DataFolder
from collm.store.decisions import Decision, DecisionKind
from collm.types import BASE, VersionId

ONE, TWO, THREE = VersionId("a@1"), VersionId("a@2"), VersionId("a@3")


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataFolder]:
    times = iter(range(100))
    with DataFolder(tmp_path, max_versions=5, now_s=lambda: float(next(times))) as opened:
        for label in "123":
            opened.versions.publish(
                "a", label, digest=label, base_digest="b", rank=4, metadata={}, write=lambda _: None
            )
        yield opened


def test_nothing_is_active_before_a_promotion(data: DataFolder) -> None:
    assert data.decisions.active() == {}
    assert data.decisions.held() == {}
    assert data.decisions.history("a") == ()


def test_promotion_holds_the_version_before(data: DataFolder) -> None:
    for version in (ONE, TWO, THREE):
        data.decisions.promote(version, "better", {})
    assert data.decisions.active() == {"a": THREE}
    assert data.decisions.held() == {"a": TWO}


def test_promoting_the_active_version_decides_nothing(data: DataFolder) -> None:
    data.decisions.promote(ONE, "better", {})
    data.decisions.promote(TWO, "better", {})
    data.decisions.promote(TWO, "again", {})
    assert data.decisions.held() == {"a": ONE}
    assert len(data.decisions.history("a")) == 2


def test_rollback_makes_an_earlier_version_active_and_holds_nothing(data: DataFolder) -> None:
    data.decisions.promote(ONE, "better", {})
    data.decisions.promote(TWO, "better", {})
    data.decisions.rollback(ONE, "worse", {})
    assert data.decisions.active() == {"a": ONE}
    assert data.decisions.held() == {}


def test_first_version_is_taken_back_to_the_base_on_record(data: DataFolder) -> None:
    data.decisions.promote(ONE, "better", {})
    assert data.decisions.first() == {"a": ONE}
    data.decisions.return_to_base("a", "worse", {"loss": 2.0})
    assert (data.decisions.active(), data.decisions.held()) == ({}, {})
    row = data.decisions.history("a")[-1]
    assert (row.kind, row.version, row.previous) == (DecisionKind.ROLLBACK, BASE, ONE)
    assert (row.reason, row.numbers) == ("worse", {"loss": 2.0})


def test_adapter_is_taken_back_until_another_version_of_it_is_promoted(data: DataFolder) -> None:
    data.decisions.promote(ONE, "better", {})
    assert data.decisions.taken_back() == ()
    data.decisions.return_to_base("a", "worse", {})
    data.decisions.refuse("a", None, "no better", {})
    assert data.decisions.taken_back() == ("a",)
    data.decisions.promote(TWO, "better", {})
    assert data.decisions.taken_back() == ()
    data.decisions.promote(THREE, "better", {})
    data.decisions.rollback(TWO, "worse", {})
    assert data.decisions.taken_back() == ()


def test_decision_that_stands_is_the_latest_that_changed_what_is_served(data: DataFolder) -> None:
    assert data.decisions.standing() == {}
    data.decisions.promote(ONE, "better", {"verdict": "better"})
    data.decisions.promote(TWO, "better", {"verdict": "better"})
    data.decisions.refuse("a", None, "no better", {})
    standing = data.decisions.standing()["a"]
    assert (standing.version, standing.numbers) == (TWO, {"verdict": "better"})
    data.decisions.rollback(ONE, "worse", {})
    standing = data.decisions.standing()["a"]
    assert (standing.kind, standing.version) == (DecisionKind.ROLLBACK, ONE)


def test_first_version_is_the_latest_that_took_the_place_of_none(data: DataFolder) -> None:
    assert data.decisions.first() == {}
    data.decisions.promote(ONE, "better", {})
    data.decisions.promote(TWO, "better", {})
    data.decisions.rollback(ONE, "worse", {})
    assert data.decisions.first() == {"a": ONE}
    data.decisions.unload("a", "asked for")
    data.decisions.promote(THREE, "better", {})
    assert data.decisions.first() == {"a": THREE}


def test_rollback_to_an_unpublished_version_changes_nothing(data: DataFolder) -> None:
    data.decisions.promote(ONE, "better", {})
    with pytest.raises(UnknownAdapterError, match="'a@99' is not published"):
        data.decisions.rollback(VersionId("a@99"), "worse", {})
    assert data.decisions.active() == {"a": ONE}


def test_history_tells_every_decision_in_order(data: DataFolder) -> None:
    data.decisions.promote(ONE, "first", {})
    data.decisions.promote(TWO, "better on held-out", {"loss": 1.25, "slices": {"general": [1, 2]}})
    data.decisions.refuse("a", None, "no better", {"loss": 1.5})
    data.decisions.rollback(ONE, "worse on feedback", {"loss": 2.0})
    assert [
        (item.decided_at_s, item.kind, item.version, item.previous, item.reason, item.numbers)
        for item in data.decisions.history("a")
    ] == [
        (3.0, DecisionKind.PROMOTION, ONE, None, "first", {}),
        (
            4.0,
            DecisionKind.PROMOTION,
            TWO,
            ONE,
            "better on held-out",
            {"loss": 1.25, "slices": {"general": [1, 2]}},
        ),
        (5.0, DecisionKind.REFUSAL, None, TWO, "no better", {"loss": 1.5}),
        (6.0, DecisionKind.ROLLBACK, ONE, TWO, "worse on feedback", {"loss": 2.0}),
    ]
    assert data.decisions.history("b") == ()


def test_refusal_of_non_finite_numbers_can_be_written_and_shown(data: DataFolder) -> None:
    data.decisions.refuse("a", THREE, "not finite", {"loss": math.nan, "norms": [math.inf, 1.0]})
    (decision,) = data.decisions.history("a")
    assert decision.numbers == {"loss": "nan", "norms": ["inf", 1.0]}
    json.dumps(decision.numbers, allow_nan=False)


def test_latest_decisions_are_told_oldest_first(data: DataFolder) -> None:
    for number in range(5):
        data.decisions.refuse("a", None, str(number), {})
    assert [item.reason for item in data.decisions.history("a", limit=2)] == ["3", "4"]
    assert len(data.decisions.history("a", limit=9)) == 5


def test_unloaded_adapter_has_no_active_version_until_one_is_promoted_again(
    data: DataFolder,
) -> None:
    data.decisions.promote(ONE, "better", {})
    data.decisions.promote(TWO, "better", {})
    for _ in range(2):
        data.decisions.unload("a", "asked for")
    assert (data.decisions.active(), data.decisions.held()) == ({}, {})
    decision = data.decisions.history("a")[-1]
    assert (decision.kind, decision.version, decision.previous) == ("unload", None, TWO)
    assert len(data.decisions.history("a")) == 3
    data.decisions.promote(TWO, "loaded again", {})
    assert (data.decisions.active(), data.decisions.held()) == ({"a": TWO}, {})


def test_unloading_an_unknown_adapter_decides_nothing(data: DataFolder) -> None:
    data.decisions.unload("b", "asked for")
    assert data.decisions.history("b") == ()


def test_unpublished_version_is_not_promoted(data: DataFolder) -> None:
    with pytest.raises(UnknownAdapterError, match="'a@9' is not published"):
        data.decisions.promote(VersionId("a@9"), "better", {})
    assert data.decisions.active() == {}


def test_decision_that_cannot_be_written_changes_nothing(data: DataFolder) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        data.decisions.promote(ONE, "better", {"when": object()})
    assert data.decisions.active() == {}


def test_refusal_for_a_name_that_is_not_allowed_is_refused(data: DataFolder) -> None:
    with pytest.raises(AdapterError, match="adapter name 'a/b' is not allowed"):
        data.decisions.refuse("a/b", None, "no better", {})


def test_active_versions_and_history_survive_a_restart(tmp_path: Path, data: DataFolder) -> None:
    data.decisions.promote(ONE, "better", {})
    data.decisions.promote(TWO, "better", {})
    history: tuple[Decision, ...] = data.decisions.history("a")
    data.close()
    with DataFolder(tmp_path, max_versions=5, now_s=lambda: 0.0) as reopened:
        assert reopened.decisions.active() == {"a": TWO}
        assert reopened.decisions.held() == {"a": ONE}
        assert reopened.decisions.history("a") == history


def test_old_refusals_go_and_what_was_served_stays_on_record(data: DataFolder) -> None:
    data.decisions.refuse("a", None, "worse", {"step": 0})
    data.decisions.promote(ONE, "better", {})
    for step in (1, 2, 3):
        data.decisions.refuse("a", None, "worse", {"step": step})
    data.decisions.rollback(ONE, "asked for", {})
    data.decisions.refuse("b", None, "worse", {"step": 9})
    data.decisions.prune(max_refusals=2)
    kept = [(row.kind, row.numbers.get("step")) for row in data.decisions.history("a")]
    assert kept == [
        (DecisionKind.PROMOTION, None),
        (DecisionKind.REFUSAL, 2),
        (DecisionKind.REFUSAL, 3),
        (DecisionKind.ROLLBACK, None),
    ]
    assert len(data.decisions.history("b")) == 1
