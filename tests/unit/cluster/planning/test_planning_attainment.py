"""The formula beside a simulated processor of the same step times, and its monotony."""

import math
from dataclasses import replace
from random import Random

import pytest

from collm.cluster.planning.attainment import AttainmentModel, RequestMix
from collm.types import StepCoefficients
from factories.simulated_steps import MIX, MODEL, simulate

CREDITS = [0.0, 0.1, 0.3, 0.5, 0.8, 0.99]


@pytest.mark.parametrize("rate_per_s", [0.5, 2.0, 3.5])
def test_the_crowd_and_the_busy_time_are_those_of_a_simulated_replica(rate_per_s):
    sequences, busy, _ = simulate(rate_per_s, seed=1)
    crowd = MODEL._crowd(rate_per_s, 1.0)
    assert crowd is not None
    assert crowd.mean == pytest.approx(sequences, rel=0.2)
    assert MODEL.free_share(rate_per_s) == pytest.approx(1.0 - busy, abs=0.06)


def test_the_chance_is_that_of_a_simulated_replica_or_less():
    """Near the knee it is less: an answer outlasts the crowd that it met at first."""
    for rate_per_s in (0.5, 2.0, 3.5, 4.5, 6.0):
        _, _, attained = simulate(rate_per_s, seed=2)
        assert attained - 0.25 < MODEL.probability(rate_per_s, 0.0) < attained + 0.02


@pytest.mark.parametrize("seed", range(40))
def test_it_falls_with_load_and_with_credit_whatever_the_replica(seed):
    random = Random(seed)
    model = AttainmentModel(
        cost=StepCoefficients(
            constant_s=random.choice((0.0, 10 ** random.uniform(-3, -1))),
            decode_s=10 ** random.uniform(-5, -2),
            prefill_s=random.choice((0.0, 10 ** random.uniform(-5, -2))),
            context_s=10 ** random.uniform(-9, -6),
            adapter_s=10 ** random.uniform(-4, -2),
        ),
        ttft_s=10 ** random.uniform(-1, 1),
        tpot_s=10 ** random.uniform(-2, 0),
        mix=RequestMix(
            prefill_tokens=10 ** random.uniform(0, 3.5),
            context_tokens=10 ** random.uniform(0, 3.5),
            output_tokens=10 ** random.uniform(0, 3),
            burstiness=10 ** random.uniform(-1, 1),
        ),
        horizon_s=random.choice((math.inf, 10 ** random.uniform(0, 3))),
        num_present=random.choice((0.0, 3.0, 30.0)),
    )
    rates = sorted(10 ** random.uniform(-3, 2) for _ in range(30))
    table = [[model.probability(rate, credit) for credit in CREDITS] for rate in (0.0, *rates)]
    slack = 1e-9
    for row in table:
        assert all(0.0 <= value <= 1.0 for value in row)
        assert all(b <= a + slack for a, b in zip(row, row[1:], strict=False))
    for column in zip(*table, strict=True):
        assert all(b <= a + slack for a, b in zip(column, column[1:], strict=False))
    free = [model.free_share(rate) for rate in (0.0, *rates)]
    assert free[0] == 1.0
    assert all(b <= a + slack for a, b in zip(free, free[1:], strict=False))


def test_no_load_is_met_and_leaves_everything_free():
    assert MODEL.probability(0.0, 0.0) > 0.99
    assert MODEL.free_share(0.0) == 1.0


def test_more_than_can_ever_be_served_is_never_met():
    assert MODEL.probability(1_000.0, 0.0) == 0.0
    assert MODEL.free_share(1_000.0) == 0.0


def test_bursts_cost():
    bursty = replace(MODEL, mix=replace(MIX, burstiness=6.0))
    assert bursty.probability(3.0, 0.0) < MODEL.probability(3.0, 0.0)


def test_too_much_for_a_while_is_not_too_much_for_ever():
    """More than can be borne: the crowd grows, and of a short window many are served in time."""
    rate_per_s = 1.1 / MODEL._work_s
    assert MODEL.probability(rate_per_s, 0.0) == 0.0
    chances = [
        replace(MODEL, horizon_s=seconds).probability(rate_per_s, 0.0)
        for seconds in (10.0, 60.0, 600.0, 6_000.0)
    ]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.5
    assert chances[-1] < 0.05


def test_who_is_there_already_is_in_the_way():
    late = replace(MODEL, horizon_s=60.0, num_present=40.0)
    assert late.probability(3.5, 0.0) < replace(late, num_present=0.0).probability(3.5, 0.0)


def test_light_load_does_not_feel_the_horizon():
    short = replace(MODEL, horizon_s=60.0)
    assert short.probability(0.5, 0.0) == pytest.approx(MODEL.probability(0.5, 0.0), abs=0.01)
    assert short.free_share(0.5) == pytest.approx(MODEL.free_share(0.5), abs=0.05)
