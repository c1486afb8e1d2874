"""What counts as lost, hung, cut or wrong while replicas are killed."""

from typing import Any

import pytest

from collm.metrics.records import RequestRecord
from replica_kills_checks import Answer, Findings, Look, Promotion, Stall, judge

PROMOTIONS = (Promotion(100.0, "a@1"), Promotion(200.0, "a@2"), Promotion(300.0, "a@3"))


def answer(at_s: float, *versions: str, lasts_s: float = 1.0, **changes: Any) -> Answer:
    """An answer that ended a second after it was asked for, whole unless told otherwise."""
    fields = {"outcome": "completed", "first_token_at_s": 0.5} | changes
    record = RequestRecord(request_id="r", model="a", versions=versions, arrived_at_s=0.0, **fields)
    return Answer(record, at_s, at_s + lasts_s)


def found(
    *answers: Answer,
    stalls: tuple[Stall, ...] = (),
    looks: tuple[Look, ...] = (),
    **digests: frozenset[str],
) -> Findings:
    return judge(answers, PROMOTIONS, digests, stalls, looks)


def test_answers_of_the_version_served_then_are_clean() -> None:
    findings = found(answer(50.0), answer(150.0, "a@1"), answer(250.0, "a@2"), answer(301.0, "a@2"))
    assert findings.is_clean
    assert findings.num_completed == 4
    assert findings.versions == {"": 1, "a@1": 1, "a@2": 2}


def test_an_answer_by_a_version_promoted_while_it_waited_is_clean() -> None:
    assert found(answer(199.0, "a@2")).is_clean


def test_the_bare_base_model_answers_before_the_first_promotion() -> None:
    assert found(answer(50.0, "base")).is_clean


@pytest.mark.parametrize("versions", [("a@1",), ("base",), ()])
def test_an_answer_by_an_older_version_than_the_settled_one_is_stale(
    versions: tuple[str, ...],
) -> None:
    findings = found(answer(202.5, *versions))
    assert findings.stale == 1
    assert not findings.is_clean


def test_an_answer_by_a_version_that_was_never_promoted_is_unknown() -> None:
    findings = found(answer(50.0, "a@9"))
    assert findings.unknown == 1
    assert not findings.is_clean


def test_each_failure_is_found_again_in_the_servers_log_by_its_times() -> None:
    cut = answer(50.0, "base", outcome="failed", error="lost", last_token_at_s=0.75)
    lost = answer(60.0, outcome="failed", error="lost", first_token_at_s=None)
    assert [
        (one.kind, one.arrived_at_s, one.first_token_at_s, one.last_token_at_s, one.ended_at_s)
        for one in found(answer(40.0), cut, lost).failures
    ] == [("cut", 50.0, 50.5, 50.75, 51.0), ("lost", 60.0, None, None, 61.0)]


def test_a_failure_says_how_things_stood_meanwhile() -> None:
    lost = answer(60.0, outcome="failed", error="lost", first_token_at_s=None)
    looks = (
        Look(59.9, 0, 9.0), Look(60.2, 2, 1.5), Look(60.4, 1, 2.5), Look(60.6, None, 2.0),
    )  # fmt: skip
    (failure,) = found(lost, looks=looks).failures
    assert (failure.fewest_live, failure.most_load) == (1, 2.5)
    (failure,) = found(lost).failures
    assert (failure.fewest_live, failure.most_load) == (None, None)


def test_an_answer_by_two_versions_is_mixed() -> None:
    assert found(answer(200.0, "a@1", "a@2")).mixed == 1


def test_a_version_with_two_contents_is_forked() -> None:
    findings = found(answer(50.0), a1=frozenset({"x", "y"}), a2=frozenset({"z"}))
    assert findings.forked == 1
    assert not findings.is_clean


def test_a_stream_that_ended_early_is_cut_and_costs_nothing() -> None:
    findings = found(answer(50.0, outcome="failed", error="replica r0 died"))
    assert findings.cut == 1
    assert findings.is_clean
    assert findings.errors == {"replica r0 died": 1}


@pytest.mark.parametrize("outcome", ["failed", "rejected"])
def test_a_request_that_failed_before_its_first_token_is_lost(outcome: str) -> None:
    findings = found(answer(50.0, outcome=outcome, first_token_at_s=None, error="HTTP 503: none"))
    assert findings.lost == 1
    assert not findings.is_clean


def test_a_request_without_an_end_hangs_whether_it_began_or_not() -> None:
    changes = {"outcome": "failed", "error": "no end within 60 s"}
    begun = {**changes, "last_token_at_s": 0.6}
    findings = found(
        answer(50.0, lasts_s=60.0, **begun), answer(60.0, first_token_at_s=None, **changes)
    )
    assert (findings.hung, findings.slow) == (2, 0)
    assert not findings.is_clean


def test_an_answer_that_still_gets_tokens_is_slow_and_does_not_hang() -> None:
    changes = {"outcome": "failed", "error": "no end within 60 s", "last_token_at_s": 58.0}
    findings = found(answer(50.0, lasts_s=60.0, **changes))
    assert (findings.hung, findings.slow) == (0, 1)
    assert findings.is_clean


def test_what_was_under_way_while_the_machine_stood_still_is_left_out() -> None:
    hung = answer(50.0, outcome="failed", error="no end within 60 s")
    findings = found(hung, answer(150.0, "a@1"), stalls=(Stall(50.5, 90.0),))
    assert findings.is_clean
    assert findings.left_out == 1
    assert findings.num_completed == 1
