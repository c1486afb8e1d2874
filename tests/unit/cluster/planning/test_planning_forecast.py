import math
from random import Random

import pytest

from collm.cluster.planning.forecast import (
    BestForecaster,
    EmaForecaster,
    Forecast,
    Forecaster,
    SeasonalForecaster,
)

WINDOW_S = 30.0
DAY_S = 24 * WINDOW_S


def poisson(random: Random, mean: float) -> int:
    """Count of a Poisson process, by its arrivals (Knuth)."""
    bound, count, product = math.exp(-mean), 0, random.random()
    while product > bound:
        count, product = count + 1, product * random.random()
    return count


def wave(start_s: float) -> float:
    """A rate that swings by a factor of nine over a day."""
    return 0.5 + 0.4 * math.sin(2 * math.pi * start_s / DAY_S)


def feed(forecaster: Forecaster, rate, num_windows: int, seed: int, first: int = 0) -> list[float]:
    """Observe Poisson windows; return each one's error in standard deviations."""
    random, scores = Random(seed), []
    for number in range(first, first + num_windows):
        start_s, end_s = number * WINDOW_S, (number + 1) * WINDOW_S
        expected = forecaster.forecast(start_s, end_s)
        count = poisson(random, rate(start_s) * WINDOW_S)
        scores.append((count / WINDOW_S - expected.mean_per_s) / expected.std_per_s)
        forecaster.observe(start_s, end_s, count)
    return scores


@pytest.mark.parametrize(
    "make", [lambda: EmaForecaster(300.0), lambda: SeasonalForecaster(DAY_S, 24)]
)
def test_without_data_none_are_expected_give_or_take_one(make):
    found = make().forecast(0.0, 20.0)
    assert found.mean_per_s == 0.0
    assert found.std_per_s == pytest.approx(1.0 / 20.0)


@pytest.mark.parametrize(
    "make", [lambda: EmaForecaster(600.0), lambda: SeasonalForecaster(DAY_S, 24)]
)
def test_a_steady_rate_is_found_within_a_tenth(make):
    forecaster = make()
    feed(forecaster, lambda _: 8.0, 120, seed=1)
    end_s = 120 * WINDOW_S
    assert forecaster.forecast(end_s, end_s + WINDOW_S).mean_per_s == pytest.approx(8.0, rel=0.1)


def test_the_stated_error_is_the_error_of_a_steady_rate():
    scores = feed(EmaForecaster(600.0), lambda _: 2.0, 400, seed=2)[40:]
    assert math.sqrt(sum(x * x for x in scores) / len(scores)) == pytest.approx(1.0, abs=0.15)


def test_the_stated_error_is_the_error_of_a_rate_that_swings():
    scores = feed(EmaForecaster(60.0), wave, 480, seed=3)[48:]
    assert math.sqrt(sum(x * x for x in scores) / len(scores)) == pytest.approx(1.0, abs=0.2)


def test_longer_windows_are_surer_but_not_surer_than_the_rate():
    forecaster = EmaForecaster(60.0)
    feed(forecaster, wave, 480, seed=3)
    one, many = (forecaster.forecast(0.0, n * WINDOW_S).std_per_s for n in (1, 100))
    assert 0.25 * one < many < one


def test_a_daily_pattern_is_forecast_better_than_by_the_rate_of_late():
    def mean_error(forecaster: Forecaster) -> float:
        feed(forecaster, lambda s: 4.0 * wave(s), 4 * 24, seed=4)
        starts = [number * WINDOW_S for number in range(4 * 24, 5 * 24)]
        found = [forecaster.forecast(start, start + WINDOW_S).mean_per_s for start in starts]
        return sum(abs(f - 4 * wave(s)) for f, s in zip(found, starts, strict=True)) / len(starts)

    seasonal = mean_error(SeasonalForecaster(DAY_S, 24))
    assert seasonal < 0.25
    assert seasonal < 0.5 * mean_error(EmaForecaster(120.0))


def test_a_busier_day_raises_the_rest_of_its_pattern():
    forecaster = SeasonalForecaster(DAY_S, 24)
    feed(forecaster, wave, 3 * 24, seed=5)
    feed(forecaster, lambda s: 2.0 * wave(s), 12, seed=6, first=3 * 24)
    start_s = (3 * 24 + 12) * WINDOW_S
    assert forecaster.forecast(start_s, start_s + WINDOW_S).mean_per_s > 1.5 * wave(start_s)


def test_an_hour_never_seen_counts_as_the_rate_of_late():
    forecaster = SeasonalForecaster(DAY_S, 24)
    for number in range(6):
        forecaster.observe(number * WINDOW_S, (number + 1) * WINDOW_S, 60)
    found = forecaster.forecast(12 * WINDOW_S, 13 * WINDOW_S)
    assert found.mean_per_s == pytest.approx(2.0, rel=0.05)


def test_a_window_over_several_bins_is_their_mean():
    forecaster = SeasonalForecaster(100.0, 2)
    for day in range(8):
        forecaster.observe(100.0 * day, 100.0 * day + 50.0, 50)
        forecaster.observe(100.0 * day + 50.0, 100.0 * day + 100.0, 150)
    found = forecaster.forecast(800.0, 900.0)
    assert found.mean_per_s == pytest.approx(2.0, rel=0.1)


def test_no_arrivals_at_all_leave_a_small_error_and_no_rate():
    forecaster = EmaForecaster(300.0)
    for number in range(20):
        forecaster.observe(number * WINDOW_S, (number + 1) * WINDOW_S, 0)
    found = forecaster.forecast(0.0, WINDOW_S)
    assert found.mean_per_s == 0.0
    assert 0.0 < found.std_per_s < 1.0 / WINDOW_S


def test_a_window_without_length_says_nothing():
    forecaster = EmaForecaster(300.0)
    forecaster.observe(5.0, 5.0, 3)
    assert forecaster.forecast(5.0, 6.0).mean_per_s == 0.0


def test_the_one_that_was_right_of_late_is_believed():
    class Fixed:
        def __init__(self, mean_per_s):
            self.mean_per_s = mean_per_s

        def observe(self, start_s, end_s, num_arrivals):
            pass

        def forecast(self, start_s, end_s):
            return Forecast(self.mean_per_s, 0.0)

    best = BestForecaster((Fixed(1.0), Fixed(3.0)), half_life_s=60.0)
    assert best.forecast(0.0, 30.0).mean_per_s == 1.0
    for number in range(4):
        best.observe(30.0 * number, 30.0 * (number + 1), 90)
    assert best.forecast(120.0, 150.0).mean_per_s == 3.0
    for number in range(4, 12):
        best.observe(30.0 * number, 30.0 * (number + 1), 30)
    assert best.forecast(360.0, 390.0).mean_per_s == 1.0


def test_a_daily_pattern_is_foretold_once_it_was_seen():
    best = BestForecaster(
        (EmaForecaster(2 * WINDOW_S), SeasonalForecaster(DAY_S, 24)), half_life_s=8 * WINDOW_S
    )
    ema = EmaForecaster(2 * WINDOW_S)
    feed(best, wave, 24 * 4, seed=5)
    feed(ema, wave, 24 * 4, seed=5)
    rises_s = DAY_S * 4
    truth = wave(rises_s)
    late = abs(ema.forecast(rises_s, rises_s + WINDOW_S).mean_per_s - truth)
    assert abs(best.forecast(rises_s, rises_s + WINDOW_S).mean_per_s - truth) < late
