"""The forecasts on two weeks of recorded traffic: the twelve largest clients of a hosted model.

Requests in each ten minutes, a tenth of them all, as the ServeGen authors published them (Y. Xiang
et al., ServeGen, 2025; alibaba/ServeGen, Apache 2.0). Some clients follow the day, some come in
batches, some are flat. Two days go by before a forecast counts, as a daily pattern has to be seen.
"""

import gzip
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from collm.cluster.planning.adapter_estimates import AdapterEstimates
from collm.cluster.planning.forecast import EmaForecaster, SeasonalForecaster
from collm.types import AdapterTotals

RECORDING = Path(__file__).parents[3] / "data" / "arrivals.json.gz"
PERIOD_S = 600.0
HALF_LIFE_S = 2 * PERIOD_S
DAY_S = 86_400.0
NUM_SEEN = 288
DAY = 144
"""Windows of one."""


class Planned:
    """All that the planner forecasts an adapter's arrivals by."""

    def __init__(self) -> None:
        self._adapter = AdapterEstimates(HALF_LIFE_S)

    def observe(self, start_s: float, end_s: float, num_arrivals: int) -> None:
        done = {"r0": AdapterTotals(num_arrived=num_arrivals)}
        self._adapter.learn_arrivals(done, start_s, end_s)

    def forecast(self, start_s: float, end_s: float):
        return self._adapter.forecast(start_s, end_s)


@pytest.fixture(scope="module")
def clients() -> dict[str, list[int]]:
    return json.loads(gzip.decompress(RECORDING.read_bytes()))["num_arrived"]


@pytest.fixture(scope="module")
def planned(clients) -> dict[str, list[tuple[float, float]]]:
    return {name: scores(Planned(), counts) for name, counts in clients.items()}


def scores(forecaster, counts: Sequence[int]) -> list[tuple[float, float]]:
    """Return the error of each forecast that counts, and the error that it stated; per second."""
    found = []
    for number, count in enumerate(counts):
        start_s, end_s = number * PERIOD_S, (number + 1) * PERIOD_S
        if number >= NUM_SEEN:
            expected = forecaster.forecast(start_s, end_s)
            found.append((expected.mean_per_s - count / PERIOD_S, expected.std_per_s))
        forecaster.observe(start_s, end_s, count)
    return found


def error(found) -> float:
    return math.sqrt(sum(one * one for one, _ in found) / len(found))


def mean_ratio(pairs) -> float:
    """Return the geometric mean."""
    logarithms = [math.log(a / b) for a, b in pairs]
    return math.exp(sum(logarithms) / len(logarithms))


def test_recorded_daily_patterns_are_foretold_better_than_by_the_rate_of_late(clients):
    daily = [it for it in clients.values() if statistics.correlation(it[:-DAY], it[DAY:]) > 0.79]
    assert len(daily) == 4
    for counts in daily:
        seasonal = SeasonalForecaster(DAY_S, 96, level_half_life_s=2.0 * HALF_LIFE_S)
        recent = EmaForecaster(HALF_LIFE_S)
        assert error(scores(seasonal, counts)) < 0.88 * error(scores(recent, counts))


def test_forecasts_beat_the_rate_of_late_and_are_no_worse_than_the_count_before(clients, planned):
    recent = {name: error(scores(EmaForecaster(HALF_LIFE_S), it)) for name, it in clients.items()}
    before = {name: error(as_before(counts)) for name, counts in clients.items()}
    assert mean_ratio((error(it), recent[name]) for name, it in planned.items()) < 0.82
    assert mean_ratio((error(it), before[name]) for name, it in planned.items()) < 1.05
    for name, it in planned.items():
        assert error(it) < 1.1 * recent[name]


def as_before(counts: Sequence[int]) -> list[tuple[float, float]]:
    """Return the errors of forecasting each count by the one before it."""
    pairs = zip(counts[NUM_SEEN - 1 :], counts[NUM_SEEN:], strict=False)
    return [((before - count) / PERIOD_S, 0.0) for before, count in pairs]


def test_the_stated_error_holds_on_recorded_traffic(planned):
    for it in planned.values():
        within = sum(abs(one) <= 2.0 * stated for one, stated in it) / len(it)
        assert within > 0.88
