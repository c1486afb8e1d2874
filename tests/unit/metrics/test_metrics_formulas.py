"""The worked examples of docs/metrics.md."""

from dataclasses import dataclass

import pytest

from collm.metrics.attainment import measure_attainment, wilson_interval
from collm.metrics.goodput import (
    goodput_ratio,
    paper_goodput_per_s,
    paper_quality,
    regret,
    task_goodput_per_s,
    throughput_per_s,
)
from collm.metrics.latency import percentile, summarize_latency
from collm.metrics.records import Kind, Outcome, RequestRecord
from collm.types import VersionId


@dataclass(frozen=True)
class Targets:
    """Any object with these two fields is a set of objectives."""

    ttft_s: float = 0.8
    tpot_s: float = 0.1


OBJECTIVES = Targets(ttft_s=0.8, tpot_s=0.1)


def make_record(
    request_id: str,
    kind: Kind,
    version: str | None,
    ttft_s: float | None,
    tpot_s: float | None,
    outcome: Outcome = "completed",
) -> RequestRecord:
    num_tokens = 0 if ttft_s is None else 1 if tpot_s is None else 11
    last = None if ttft_s is None else ttft_s + (tpot_s or 0.0) * 10
    return RequestRecord(
        request_id=request_id,
        model="clinc",
        versions=(VersionId(version),) if version else (),
        kind=kind,
        arrived_at_s=0.0,
        first_token_at_s=ttft_s,
        last_token_at_s=last,
        num_output_tokens=num_tokens,
        outcome=outcome,
    )


EXAMPLE = (
    make_record("a", "scored", "clinc@1", 0.2, 0.05),
    make_record("b", "scored", "clinc@2", 0.4, None),
    make_record("c", "length", "clinc@2", 0.9, 0.05),
    make_record("d", "length", None, None, None, "rejected"),
    make_record("e", "length", "clinc@2", 0.3, 0.05, "aborted"),
)


def test_percentile_takes_the_nearest_rank():
    times = [record.ttft_s for record in EXAMPLE if record.ttft_s is not None]
    assert percentile(times, 0.5) == 0.3
    assert percentile(times, 0.95) == 0.9
    assert percentile(times, 1.0) == 0.9


def test_percentile_rank_is_not_pushed_up_by_rounding():
    assert percentile(range(1, 101), 0.07) == 7


def test_percentile_of_nothing_is_none_and_of_a_wrong_share_an_error():
    assert percentile([], 0.5) is None
    with pytest.raises(ValueError, match="share"):
        percentile([1.0], 0.0)


def test_summary_leaves_out_requests_without_a_time():
    summary = summarize_latency(record.ttft_s for record in EXAMPLE)
    assert (summary.p50_s, summary.p99_s, summary.max_s) == (0.3, 0.9, 0.9)
    assert summarize_latency([]).max_s is None


def test_rejected_requests_miss_and_aborts_are_counted_apart():
    attainment = measure_attainment(EXAMPLE, OBJECTIVES)
    assert (attainment.num_met, attainment.num_counted, attainment.num_aborted) == (2, 4, 1)
    assert attainment.share == 0.5
    assert attainment.interval == pytest.approx((0.150, 0.850), abs=5e-4)


def test_attainment_of_nothing_is_unknown():
    attainment = measure_attainment([], OBJECTIVES)
    assert attainment.share is None
    assert attainment.interval == (0.0, 1.0)


def test_wilson_interval_agrees_with_published_values():
    assert wilson_interval(95, 100) == pytest.approx((0.888, 0.978), abs=5e-4)
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_wilson_interval_refuses_more_hits_than_trials():
    with pytest.raises(ValueError, match="num_hits"):
        wilson_interval(3, 2)


def test_throughput_counts_requests_that_met():
    assert throughput_per_s(EXAMPLE, OBJECTIVES, 10.0) == pytest.approx(0.2)


def test_throughput_needs_a_duration():
    with pytest.raises(ValueError, match="duration_s"):
        throughput_per_s(EXAMPLE, OBJECTIVES, 0.0)


def test_paper_goodput_weighs_by_the_serving_version():
    entropies = {VersionId("clinc@1"): 2.0, VersionId("clinc@2"): 0.5}
    assert paper_goodput_per_s(EXAMPLE, OBJECTIVES, 10.0, entropies) == pytest.approx(0.25)


def test_paper_quality_is_bounded():
    assert paper_quality(2.0) == 0.5
    assert paper_quality(0.0) == pytest.approx(10.0)


def test_paper_goodput_names_a_version_without_cross_entropy():
    with pytest.raises(ValueError, match="clinc@2"):
        paper_goodput_per_s(EXAMPLE, OBJECTIVES, 10.0, {VersionId("clinc@1"): 2.0})


def test_task_goodput_counts_scored_requests_only():
    scores = {"a": 1.0, "b": 0.0}
    goodput = task_goodput_per_s(EXAMPLE, OBJECTIVES, 10.0, lambda r: scores.get(r.request_id))
    assert goodput == pytest.approx(0.1)


def test_no_ratio_over_a_policy_of_poor_quality():
    assert goodput_ratio(0.25, 0.1, base_quality=0.3) == pytest.approx(2.5)
    assert goodput_ratio(0.25, 0.1, base_quality=0.04) is None
    assert goodput_ratio(0.25, 0.0, base_quality=0.3) is None


def test_regret_is_what_the_oracle_had_more():
    assert regret(0.3, 0.4) == pytest.approx(0.25)
    assert regret(0.5, 0.4) < 0
    with pytest.raises(ValueError, match="oracle"):
        regret(0.3, 0.0)
