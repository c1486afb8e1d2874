"""The worked examples of docs/metrics.md on pairs, and what an interval has to be like."""

import math
from random import Random

import pytest

from collm.metrics.attainment import Z_95
from collm.metrics.paired import PairCounts, bootstrap_ratio, pair_records, total_pairs
from collm.metrics.records import RequestRecord
from collm.pacing.config import Objectives

OBJECTIVES = Objectives(ttft_s=0.8, tpot_s=0.1)


def record(*, met: bool) -> RequestRecord:
    first_token_at_s = 0.5 if met else 0.9
    return RequestRecord(
        request_id="a",
        model="m",
        arrived_at_s=0.0,
        first_token_at_s=first_token_at_s,
        last_token_at_s=first_token_at_s,
        num_output_tokens=1,
        outcome="completed",
    )


def test_pairs_are_counted_by_what_met_under_which_policy() -> None:
    new = [record(met=flag) for flag in (True, True, False, False)]
    old = [record(met=flag) for flag in (True, False, True, False)]
    counts = pair_records(new, old, OBJECTIVES)
    assert counts == PairCounts(num_both=1, num_only_new=1, num_only_old=1, num_neither=1)
    assert counts.num_pairs == 4
    assert counts.ratio == 1.0


def test_lists_of_other_lengths_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="shorter"):
        pair_records([record(met=True)], [], OBJECTIVES)


def test_example_of_an_interval() -> None:
    counts = PairCounts(num_both=200, num_only_old=1, num_neither=10)
    assert counts.ratio == pytest.approx(200 / 201)
    assert counts.interval == pytest.approx((0.9817, 1.0086), abs=5e-5)


@pytest.mark.parametrize("num_met", [1, 33, 96, 1_000])
def test_when_every_request_met_the_bound_is_that_of_a_wilson_interval(num_met: int) -> None:
    z_squared = Z_95**2 / 2 * (num_met + 2) / (num_met + 1)
    low, high = PairCounts(num_both=num_met).interval
    assert low == pytest.approx(num_met / (num_met + z_squared))
    assert high == pytest.approx(1 / low)


def test_about_a_hundred_requests_that_all_met_prove_two_percent() -> None:
    assert PairCounts(num_both=95).interval[0] < 0.98 < PairCounts(num_both=96).interval[0]


def test_swapping_the_policies_turns_the_interval_over() -> None:
    low, high = PairCounts(num_both=80, num_only_new=3, num_only_old=9).interval
    other_low, other_high = PairCounts(num_both=80, num_only_new=9, num_only_old=3).interval
    assert (1 / high, 1 / low) == pytest.approx((other_low, other_high))


def test_nothing_met_says_nothing() -> None:
    counts = PairCounts(num_neither=5)
    assert counts.ratio is None
    assert counts.interval == (0.0, math.inf)
    assert PairCounts(num_only_new=5).ratio is None
    assert PairCounts(num_only_old=5).interval[0] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("share", "change"), [(0.97, 0.02), (0.8, 0.1)])
def test_the_interval_covers_the_true_ratio_nearly_always(share: float, change: float) -> None:
    random, num_covered, num_runs = Random(7), 0, 400
    for _ in range(num_runs):
        both = only_new = only_old = 0
        for _ in range(400):
            old = random.random() < share
            new = old != (random.random() < change)
            both, only_new, only_old = (
                both + (old and new), only_new + (new and not old), only_old + (old and not new)
            )  # fmt: skip
        low, high = PairCounts(num_both=both, num_only_new=only_new, num_only_old=only_old).interval
        true = (share * (1 - change) + (1 - share) * change) / share
        num_covered += low <= true <= high
    assert num_covered / num_runs >= 0.92


def test_equal_blocks_leave_the_bootstrap_no_doubt() -> None:
    assert bootstrap_ratio([PairCounts(num_both=9, num_only_old=1)] * 5, 0, 200) == (0.9, 0.9)


def test_the_bootstrap_draws_whole_blocks() -> None:
    good, bad = PairCounts(num_both=10), PairCounts(num_only_old=10)
    interval = bootstrap_ratio([good, good, good, bad], 0, 2_000)
    assert interval == pytest.approx((0.25, 1.0))
    assert interval == bootstrap_ratio([good, good, good, bad], 0, 2_000)


def test_the_bootstrap_has_no_answer_where_some_draw_has_no_ratio() -> None:
    assert bootstrap_ratio([], 0) is None
    assert bootstrap_ratio([PairCounts(num_both=5), PairCounts(num_neither=5)], 0) is None


def test_blocks_add_up() -> None:
    blocks = [PairCounts(num_both=2, num_neither=1), PairCounts(num_only_new=1, num_only_old=3)]
    assert total_pairs(blocks) == PairCounts(
        num_both=2, num_only_new=1, num_only_old=3, num_neither=1
    )
