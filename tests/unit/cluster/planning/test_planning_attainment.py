"""The formula beside a simulated processor of the same step times, its monotony, its correction."""

from dataclasses import replace
from random import Random

import pytest

from collm.cluster.planning.attainment import (
    AttainmentModel,
    RequestMix,
    ServedWindow,
    calibrated,
)
from collm.types import StepCoefficients

MIX = RequestMix(prefill_tokens=60.0, context_tokens=100.0, output_tokens=40.0)
MODEL = AttainmentModel(
    cost=StepCoefficients(
        constant_s=0.02, decode_s=0.002, prefill_s=0.001, context_s=1e-6, adapter_s=0.002
    ),
    ttft_s=0.8,
    tpot_s=0.1,
    mix=MIX,
)

CREDITS = [0.0, 0.1, 0.3, 0.5, 0.8, 0.99]


def simulate(rate_per_s: float, seed: int, num_requests: int = 3_000) -> tuple[float, float, float]:
    """Steps with the model's own times over Poisson arrivals of geometric lengths.

    Returns:
        Mean sequences in the system, share of time busy, share of requests within both objectives.
    """
    random, cost = Random(seed), MODEL.cost
    now, arrivals = 0.0, []
    for _ in range(num_requests):
        now += random.expovariate(rate_per_s)
        arrivals.append(now)
    waiting = [(at, max(2, int(random.expovariate(1 / MIX.output_tokens)) + 1)) for at in arrivals]
    waiting.reverse()
    prefilling: list[list[float]] = []  # arrival, tokens left, output
    running: list[list[float]] = []  # arrival, first token at, output, tokens made
    now = busy = area = 0.0
    num_met = 0
    while waiting or prefilling or running:
        while waiting and waiting[-1][0] <= now:
            at, output = waiting.pop()
            prefilling.append([at, MIX.prefill_tokens, output])
        if not (prefilling or running):
            now = waiting[-1][0]
            continue
        step = cost.constant_s + cost.adapter_s + (cost.decode_s + 1e-4) * len(running)
        room = int((MODEL.tpot_s - step) / cost.prefill_s) if running else 512
        room = min(max(room, 16), 512)
        done = []
        for one in prefilling:
            taken = min(one[1], room)
            one[1] -= taken
            room -= taken
            step += cost.prefill_s * taken
            if one[1] == 0:
                done.append(one)
        now += step
        busy += step
        area += step * (len(prefilling) + len(running))
        for one in running:
            one[3] += 1
        for at, _, output in done:
            running.append([at, now, output, 1])
        prefilling = [one for one in prefilling if one[1] > 0]
        for one in [one for one in running if one[3] >= one[2]]:
            per_token = (now - one[1]) / max(1, one[2] - 1)
            num_met += one[1] - one[0] <= MODEL.ttft_s and per_token <= MODEL.tpot_s
        running = [one for one in running if one[3] < one[2]]
    return area / now, busy / now, num_met / num_requests


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


def test_what_a_simulated_replica_attains_corrects_it_to_within_six_points():
    rates = (0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 7.0)
    windows = []
    for number, rate_per_s in enumerate(rates):
        _, busy, attained = simulate(rate_per_s, seed=10 + number, num_requests=400)
        met = round(400 * attained)
        windows.append(ServedWindow(rate_per_s, 0.0, 400, met, busy, 400 / rate_per_s))
    found = calibrated(MODEL, windows)
    for rate_per_s in (0.7, 2.5, 4.25, 5.0):
        _, _, attained = simulate(rate_per_s, seed=3)
        assert found.probability(rate_per_s, 0.0) == pytest.approx(attained, abs=0.06)


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


def observed(
    truth: AttainmentModel, lapse: float, seed: int, num_windows: int = 24
) -> list[ServedWindow]:
    """Windows of a replica that is as ``truth`` but for a share that misses anyway."""
    random, windows = Random(seed), []
    for _ in range(num_windows):
        rate, credit = random.uniform(0.2, 6.0), random.choice((0.0, 0.2))
        count = int(rate * 60.0) + 1
        chance = (1.0 - lapse) * truth.probability(rate, credit)
        met = sum(random.random() < chance for _ in range(count))
        busy = 0.8 * (1.0 - truth.free_share(rate))
        windows.append(ServedWindow(rate, credit, count, met, busy, 60.0))
    return windows


@pytest.mark.parametrize(("factor", "lapse"), [(1.6, 0.0), (0.7, 0.05), (1.0, 0.1)])
def test_a_replica_that_differs_from_the_formula_is_found_out(factor, lapse):
    truth = replace(MODEL, calibration=replace(MODEL.calibration, load_factor=factor))
    found = calibrated(MODEL, observed(truth, lapse, seed=1))
    assert found.calibration.load_factor == pytest.approx(factor, rel=0.15)
    assert found.calibration.lapse == pytest.approx(lapse, abs=0.03)
    assert found.calibration.busy_factor == pytest.approx(0.8, abs=0.05)
    for rate in (0.5, 2.0, 4.0):
        expected = (1.0 - lapse) * truth.probability(rate, 0.0)
        assert found.probability(rate, 0.0) == pytest.approx(expected, abs=0.06)


def test_without_windows_it_stays_as_it_was_made():
    assert calibrated(MODEL, []) == MODEL
    idle = ServedWindow(0.0, 0.0, 0, 0, 0.0, 60.0)
    assert calibrated(MODEL, [idle]) == MODEL


def test_calibrating_twice_is_calibrating_once():
    windows = observed(MODEL, 0.05, seed=3)
    once = calibrated(MODEL, windows)
    assert calibrated(once, windows) == once
