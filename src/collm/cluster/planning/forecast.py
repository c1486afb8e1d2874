"""How many requests will arrive, with an error that was measured rather than assumed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_LEVEL_PRIOR = 10.0
"""Arrivals as the pattern says, that the level is thought to rest on at first."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Arrivals per second over some window to come."""

    mean_per_s: float
    std_per_s: float
    """Standard deviation of the rate that will be counted over the window."""


class Forecaster(Protocol):
    """Learns a rate of arrivals from counts, window by window."""

    def observe(self, start_s: float, end_s: float, num_arrivals: int) -> None:
        """Learn from a window that has passed; windows come in order."""
        ...

    def forecast(self, start_s: float, end_s: float) -> Forecast:
        """Return what is expected of a window."""
        ...


class _Errors:
    """How wrong one-step-ahead forecasts were, beyond what counting itself explains.

    The count over L seconds of a process with rate r varies by r / L even if r is known. What is
    left of the squared errors is the error of the rate, and does not shrink in longer windows.
    """

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._weight = self._excess = 0.0

    def score(self, forecast_per_s: float, found_per_s: float, window_s: float) -> None:
        """Note how a window turned out."""
        excess = (found_per_s - forecast_per_s) ** 2 - forecast_per_s / window_s
        keep = 0.5 ** (window_s / self._half_life_s)
        self._weight = keep * self._weight + 1.0
        self._excess = keep * self._excess + excess

    def std_per_s(self, mean_per_s: float, window_s: float, seen_s: float) -> float:
        """Return the deviation to expect of a window.

        Args:
            mean_per_s: The forecast.
            window_s: The window's length.
            seen_s: Time that the forecast rests on: one arrival in it would be no surprise.
        """
        counting = (mean_per_s + 1.0 / max(seen_s, window_s)) / window_s
        rate = max(0.0, self._excess / self._weight) if self._weight else 0.0
        return math.sqrt(counting + rate)


class EmaForecaster:
    """The rate of late: windows fade exponentially with their age.

    Before anything was observed the forecast is no arrival, give or take one in the window.

    Args:
        half_life_s: Age at which a window counts half.
    """

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._num_arrivals = self._seen_s = 0.0
        self._errors = _Errors(4.0 * half_life_s)

    @property
    def rate_per_s(self) -> float:
        """Arrivals per second of late; 0 before any window."""
        return self._num_arrivals / self._seen_s if self._seen_s else 0.0

    def observe(self, start_s: float, end_s: float, num_arrivals: int) -> None:
        """Learn from a window; one without length is ignored."""
        window_s = end_s - start_s
        if window_s <= 0.0:
            return
        if self._seen_s:
            self._errors.score(self.rate_per_s, num_arrivals / window_s, window_s)
        keep = 0.5 ** (window_s / self._half_life_s)
        self._num_arrivals = keep * self._num_arrivals + num_arrivals
        self._seen_s = keep * self._seen_s + window_s

    def forecast(self, start_s: float, end_s: float) -> Forecast:
        """Return the rate of late, whenever the window is."""
        window_s = end_s - start_s
        std_per_s = self._errors.std_per_s(self.rate_per_s, window_s, self._seen_s)
        return Forecast(self.rate_per_s, std_per_s)


class SeasonalForecaster:
    """A rate that depends on the time of day, or of another period, times how busy it is of late.

    Each bin of the period has a rate that fades over a few periods. The level is what arrived of
    late over what the bins said of that time, so that a busier day than usual is noticed before
    its end. A bin that was never seen counts as the rate of late.

    Args:
        period_s: After this the pattern repeats.
        num_bins: Parts of the period, each with its rate.
        level_half_life_s: Age at which a window counts half for the level.
        memory_periods: Periods after which a bin's windows count half.
    """

    def __init__(
        self,
        period_s: float,
        num_bins: int,
        level_half_life_s: float | None = None,
        memory_periods: float = 2.0,
    ) -> None:
        self._bin_s = period_s / num_bins
        self._memory_s = memory_periods * period_s
        self._counts = [0.0] * num_bins
        self._seconds = [0.0] * num_bins
        self._faded_at_s = [0.0] * num_bins
        self._half_life_s = level_half_life_s or period_s / 8.0
        self._recent = EmaForecaster(self._half_life_s)
        self._found = self._said = 0.0
        self._seen_s = 0.0
        self._errors = _Errors(period_s)

    def observe(self, start_s: float, end_s: float, num_arrivals: int) -> None:
        """Learn from a window; one without length is ignored."""
        window_s = end_s - start_s
        if window_s <= 0.0:
            return
        said_per_s = self._pattern_per_s(start_s, end_s)
        if self._seen_s:
            self._errors.score(self._level * said_per_s, num_arrivals / window_s, window_s)
            keep = 0.5 ** (window_s / self._half_life_s)
            self._found = keep * self._found + num_arrivals
            self._said = keep * self._said + said_per_s * window_s
        self._seen_s += window_s
        self._recent.observe(start_s, end_s, num_arrivals)
        for index, part_s in self._parts(start_s, end_s):
            keep = 0.5 ** (max(0.0, end_s - self._faded_at_s[index]) / self._memory_s)
            self._faded_at_s[index] = end_s
            self._counts[index] = keep * self._counts[index] + num_arrivals * part_s / window_s
            self._seconds[index] = keep * self._seconds[index] + part_s

    def forecast(self, start_s: float, end_s: float) -> Forecast:
        """Return the pattern's rate in the window, at the level of late."""
        mean_per_s = self._level * self._pattern_per_s(start_s, end_s)
        std_per_s = self._errors.std_per_s(mean_per_s, end_s - start_s, self._seen_s)
        return Forecast(mean_per_s, std_per_s)

    @property
    def _level(self) -> float:
        """How busy it is of late beside the pattern, towards 1 where few arrived."""
        return (self._found + _LEVEL_PRIOR) / (self._said + _LEVEL_PRIOR)

    def _pattern_per_s(self, start_s: float, end_s: float) -> float:
        fallback, total = self._recent.rate_per_s, 0.0
        for index, part_s in self._parts(start_s, end_s):
            seconds = self._seconds[index]
            total += part_s * (self._counts[index] / seconds if seconds else fallback)
        return total / (end_s - start_s)

    def _parts(self, start_s: float, end_s: float) -> list[tuple[int, float]]:
        """Return each bin that a window touches with the seconds in it, in order."""
        parts, at_s = [], start_s
        position = math.floor(start_s / self._bin_s)
        while at_s < end_s:
            next_s = min(end_s, (position + 1) * self._bin_s)
            parts.append((position % len(self._counts), next_s - at_s))
            at_s, position = next_s, position + 1
        return parts


class BestForecaster:
    """Whichever of several was least wrong of late, by squared errors one step ahead.

    Args:
        forecasters: In order of preference, which decides before there are errors.
        half_life_s: Age at which an error counts half.
    """

    def __init__(self, forecasters: Sequence[Forecaster], half_life_s: float) -> None:
        self._forecasters = tuple(forecasters)
        self._half_life_s = half_life_s
        self._squares = [0.0] * len(self._forecasters)
        self._has_seen = False

    def observe(self, start_s: float, end_s: float, num_arrivals: int) -> None:
        """Learn from a window; one without length is ignored."""
        window_s = end_s - start_s
        if window_s <= 0.0:
            return
        keep = 0.5 ** (window_s / self._half_life_s)
        for index, one in enumerate(self._forecasters):
            if self._has_seen:
                error = one.forecast(start_s, end_s).mean_per_s - num_arrivals / window_s
                self._squares[index] = keep * self._squares[index] + window_s * error * error
            one.observe(start_s, end_s, num_arrivals)
        self._has_seen = True

    def forecast(self, start_s: float, end_s: float) -> Forecast:
        """Return what the best one expects of a window."""
        best = min(range(len(self._forecasters)), key=self._squares.__getitem__)
        return self._forecasters[best].forecast(start_s, end_s)
