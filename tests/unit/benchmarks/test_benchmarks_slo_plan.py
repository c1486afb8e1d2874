import itertools

import pytest

from collm.workload.traces import TraceRow
from slo_plan import Arm, KneeSearch, block_size, cut_block, plan_turns, scale_lengths

TRACE = tuple(TraceRow(float(at_s), 800, 200) for at_s in (0, 10, 11, 15, 16))


def search(capacity_per_s: float, start_per_s: float, max_probes: int = 20) -> KneeSearch:
    knee = KneeSearch(start_per_s, resolution=1.1, max_probes=max_probes)
    while (rate := knee.next_rate()) is not None:
        knee.add(rate, 1.0 if rate <= capacity_per_s else 0.5)
    return knee


@pytest.mark.parametrize("start_per_s", [0.2, 2.0, 20.0])
def test_the_search_comes_close_to_capacity_from_below(start_per_s: float) -> None:
    found = search(3.0, start_per_s).capacity_per_s
    assert 3.0 / 1.1 <= found <= 3.0


def test_the_search_ends_with_its_probes() -> None:
    assert search(3.0, 0.1, max_probes=2).capacity_per_s == pytest.approx(0.15)
    assert search(3.0, 20.0, max_probes=2).capacity_per_s == 0.0


def test_a_block_has_the_wanted_rate_and_the_gaps_of_the_trace() -> None:
    block = cut_block(TRACE, 1, 3, duration_s=30.0)
    assert [row.arrived_at_s for row in block] == pytest.approx([20.0, 22.0, 30.0])


@pytest.mark.parametrize(("first", "num_requests"), [(0, 2), (4, 2)])
def test_a_block_outside_the_trace_is_refused(first: int, num_requests: int) -> None:
    with pytest.raises(ValueError, match="no 2 rows"):
        cut_block(TRACE, first, num_requests, 10.0)


def test_lengths_are_divided_and_clipped() -> None:
    rows = scale_lengths((TraceRow(0.0, 800, 200), TraceRow(1.0, 99_999, 9_999)), 64)
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [(100, 64), (384, 64)]


@pytest.mark.parametrize(
    ("rate_per_s", "expected"),
    [
        (0.5, (20, 40.0)),
        (4.0, (72, 18.0)),  # the shortest block
        (0.1, (9, 90.0)),  # the longest
        (0.001, (1, 1000.0)),  # at least one request, at its rate
    ],
)
def test_blocks_are_long_enough_for_their_requests(
    rate_per_s: float, expected: tuple[int, float]
) -> None:
    assert block_size(rate_per_s, 20, min_s=18.0, max_s=90.0) == pytest.approx(expected)


def test_each_round_has_every_load_and_arm_whose_turn_it_is() -> None:
    arms = (Arm(name="off"), Arm(name="on"), Arm(name="rare", every=3))
    turns = list(plan_turns(arms, (0.1, 0.9), num_rounds=4, seed=1))
    met = {(turn.arm, turn.load, turn.block) for turn in turns}
    assert len(met) == len(turns)
    always = set(itertools.product(("off", "on"), (0.1, 0.9), range(4)))
    assert met == always | set(itertools.product(("rare",), (0.1, 0.9), (0, 3)))


def test_arms_of_a_load_and_block_follow_each_other_in_drawn_order() -> None:
    arms = (Arm(name="off"), Arm(name="on"))
    turns = list(plan_turns(arms, (0.1, 0.9), num_rounds=20, seed=1))
    runs = [list(run) for _, run in itertools.groupby(turns, lambda turn: (turn.load, turn.block))]
    assert [len(run) for run in runs] == [2] * 40
    assert {run[0].arm for run in runs} == {"off", "on"}
    assert turns == list(plan_turns(arms, (0.1, 0.9), num_rounds=20, seed=1))
