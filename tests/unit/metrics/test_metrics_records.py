from dataclasses import dataclass

import pytest

from collm.metrics.records import Outcome, RequestRecord
from collm.types import VersionId


@dataclass(frozen=True)
class Targets:
    """Any object with these two fields is a set of objectives."""

    ttft_s: float = 0.8
    tpot_s: float = 0.1


def make_record(
    *,
    first: float | None = 10.5,
    last: float | None = 11.1,
    num_output_tokens: int = 4,
    outcome: Outcome = "completed",
    versions: tuple[VersionId, ...] = (VersionId("clinc@1"),),
) -> RequestRecord:
    return RequestRecord(
        request_id="r",
        model="clinc",
        versions=versions,
        arrived_at_s=10.0,
        first_token_at_s=first,
        last_token_at_s=last,
        num_output_tokens=num_output_tokens,
        outcome=outcome,
    )


def test_times_follow_the_worked_example():
    record = make_record()
    assert record.ttft_s == pytest.approx(0.5)
    assert record.tpot_s == pytest.approx(0.2)
    assert record.latency_s == pytest.approx(1.1)


def test_one_token_has_no_tpot_and_meets_by_ttft_alone():
    record = make_record(last=10.5, num_output_tokens=1)
    assert record.tpot_s is None
    assert record.met(Targets())


def test_request_without_tokens_has_no_times():
    record = make_record(first=None, last=None, num_output_tokens=0, outcome="rejected")
    assert (record.ttft_s, record.tpot_s, record.latency_s) == (None, None, None)


@pytest.mark.parametrize(
    ("objectives", "met"),
    [
        (Targets(ttft_s=0.8, tpot_s=0.1), False),
        (Targets(ttft_s=0.8, tpot_s=0.25), True),
        (Targets(ttft_s=0.4, tpot_s=0.25), False),
    ],
)
def test_met_asks_for_every_objective(objectives, met):
    assert make_record().met(objectives) is met


@pytest.mark.parametrize("outcome", ["rejected", "failed", "aborted"])
def test_only_completed_requests_meet(outcome):
    assert not make_record(outcome=outcome).met(Targets(ttft_s=100, tpot_s=100))


def test_answer_of_two_versions_is_mixed():
    assert not make_record().is_mixed
    assert make_record(versions=(VersionId("clinc@1"), VersionId("clinc@2"))).is_mixed
