"""What windows of a replica say of its chances, on made-up truth."""

from dataclasses import replace
from random import Random

import pytest

from collm.cluster.planning.attainment import AttainmentModel, Calibration
from collm.cluster.planning.calibration import Calibrator, ServedWindow
from factories.simulated_steps import MODEL, simulate


def window(
    rate_per_s: float, credit: float, count: int, met: int, busy: float, seconds: float
) -> ServedWindow:
    return ServedWindow(
        arrivals_per_s=rate_per_s,
        credit_share=credit,
        num_ended=count,
        num_met=met,
        served_per_s=rate_per_s,
        busy_share=busy,
        seconds=seconds,
    )


def learned(windows: list[ServedWindow], model: AttainmentModel = MODEL) -> Calibration:
    """Return what windows say of a replica that ``model`` is believed of."""
    calibrator = Calibrator()
    for window in windows:
        calibrator.observe(model, window)
    return calibrator.calibration


def test_what_a_simulated_replica_attains_corrects_it_to_within_eight_points():
    rates = (0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 7.0)
    windows = []
    for number, rate_per_s in enumerate(rates):
        _, busy, attained = simulate(rate_per_s, seed=10 + number, num_requests=400)
        met = round(400 * attained)
        windows.append(window(rate_per_s, 0.0, 400, met, busy, 400 / rate_per_s))
    found = replace(MODEL, calibration=learned(windows))
    for rate_per_s in (0.7, 2.5, 4.25, 5.0):
        _, _, attained = simulate(rate_per_s, seed=3)
        assert found.probability(rate_per_s, 0.0) == pytest.approx(attained, abs=0.08)


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
        windows.append(window(rate, credit, count, met, busy, 60.0))
    return windows


@pytest.mark.parametrize(("factor", "lapse"), [(1.6, 0.0), (0.7, 0.05), (1.0, 0.1)])
def test_a_replica_that_differs_from_the_formula_is_found_out(factor, lapse):
    truth = replace(MODEL, calibration=replace(MODEL.calibration, load_factor=factor))
    calibration = learned(observed(truth, lapse, seed=1))
    assert calibration.load_factor == pytest.approx(factor, rel=0.15)
    assert calibration.lapse == pytest.approx(lapse, abs=0.03)
    assert calibration.busy_factor == pytest.approx(0.8, abs=0.05)
    found = replace(MODEL, calibration=calibration)
    for rate in (0.5, 2.0, 4.0):
        expected = (1.0 - lapse) * truth.probability(rate, 0.0)
        assert found.probability(rate, 0.0) == pytest.approx(expected, abs=0.06)


def test_without_windows_nothing_is_corrected():
    assert learned([]) == Calibration()
    assert learned([window(0.0, 0.0, 0, 0, 0.0, 60.0)]) == Calibration()


def test_what_the_model_was_corrected_by_before_does_not_count_twice():
    windows = observed(MODEL, 0.05, seed=3)
    once = learned(windows)
    assert learned(windows, replace(MODEL, calibration=once)) == once


def test_what_changed_is_followed():
    slow = replace(MODEL, calibration=Calibration(load_factor=1.6))
    calibrator = Calibrator()
    for window in observed(slow, 0.0, seed=1):
        calibrator.observe(MODEL, window)
    assert calibrator.calibration.load_factor > 1.3
    for window in observed(MODEL, 0.0, seed=2, num_windows=40):
        calibrator.observe(MODEL, window)
    assert calibrator.calibration.load_factor == pytest.approx(1.0, rel=0.15)


def test_misses_that_are_foretold_and_never_come_are_no_longer_foretold():
    """At 1.5 % foretold misses, each dearer than a hundred answers, all credit would be refused."""
    late = replace(MODEL, ttft_s=0.42)  # its own prompt alone makes one in fifty late, it is said
    foretold = 1.0 - late.probability(0.5, 0.0)
    assert foretold > 0.015
    found = replace(late, calibration=learned([window(0.5, 0.0, 200, 200, 0.5, 400.0)] * 10, late))
    assert 1.0 - found.probability(0.5, 0.0) < 0.4 * foretold
    overload = 1.5 / MODEL._work_s
    assert found.probability(overload, 0.0) == pytest.approx(0.0, abs=0.02)


def test_a_miss_factor_keeps_the_order_of_chances():
    corrected = [Calibration(miss_factor=0.1).corrected(k / 100) for k in range(101)]
    assert corrected == sorted(corrected)
    assert corrected[0] == 0.0
    assert corrected[-1] == 1.0


@pytest.mark.parametrize(("felt_share", "others"), [(0.1, (1.0,)), (1.0, (0.1, 0.3))])
def test_what_requests_feel_of_credit_is_found_out_once_it_was_given(felt_share, others):
    truth = replace(MODEL, calibration=Calibration(felt_share=felt_share))
    windows = observed(truth, 0.0, seed=4)
    assert learned(windows).felt_share == felt_share
    without = [one for one in windows if not one.credit_share]
    assert learned(without).felt_share == 1.0
    found = replace(MODEL, calibration=learned(windows))
    wrong = [replace(MODEL, calibration=Calibration(felt_share=one)) for one in others]
    chance = truth.probability(3.0, 0.4)
    assert abs(found.probability(3.0, 0.4) - chance) < 0.05
    assert all(abs(one.probability(3.0, 0.4) - chance) > 0.05 for one in wrong)
