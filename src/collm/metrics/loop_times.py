"""Where a step loop's time went, and how long its pieces took: whole run, fixed memory."""

import math
from collections import Counter

_SMALLEST_S = 1e-5
_GROWTH = 1.05
"""Ratio of neighbouring bucket bounds, and so the resolution of percentiles: 5 %."""


class Durations:
    """Percentiles of times in logarithmic buckets."""

    def __init__(self) -> None:
        self.num_observed = 0
        self.total_s = 0.0
        self.max_s = 0.0
        self._counts: Counter[int] = Counter()

    def observe(self, seconds: float) -> None:
        """Count one time."""
        self.num_observed += 1
        self.total_s += seconds
        self.max_s = max(self.max_s, seconds)
        self._counts[_bucket(seconds)] += 1

    def summary(self) -> dict[str, float | int | None]:
        """Return count, p99 and longest time, ready for JSON."""
        return {"count": self.num_observed, "p99_s": self.percentile_s(0.99), "max_s": self.max_s}

    def percentile_s(self, share: float) -> float | None:
        """Return an upper bound of the nearest-rank percentile, at most 5 % above it.

        ``None`` when nothing was observed.
        """
        rank = math.ceil(round(share * self.num_observed, 9))
        num_left = self.num_observed
        bound_s = None
        for bucket in sorted(self._counts, reverse=True):
            if num_left < rank:
                break
            bound_s = min(_SMALLEST_S * _GROWTH**bucket, self.max_s)
            num_left -= self._counts[bucket]
        return bound_s


class LoopTimes:
    """Seconds by kind of work, durations by kind of quantum, gaps between tokens.

    Used by one thread.
    """

    def __init__(self) -> None:
        self._seconds = {"serve": 0.0, "train": 0.0, "evaluate": 0.0, "idle": 0.0}
        self._quanta: dict[str, Durations] = {}
        self._gaps = Durations()

    def add(self, work: str, seconds: float) -> None:
        """Count time spent on ``serve``, ``train``, ``evaluate`` or ``idle``."""
        self._seconds[work] += seconds

    def add_quantum(self, kind: str, seconds: float) -> None:
        """Count one quantum."""
        if kind not in self._quanta:
            self._quanta[kind] = Durations()
        self._quanta[kind].observe(seconds)

    def add_gap(self, seconds: float) -> None:
        """Count one time between two tokens of a request."""
        self._gaps.observe(seconds)

    def seconds(self) -> dict[str, float]:
        """Return the seconds so far by kind of work."""
        return dict(self._seconds)

    def quanta(self) -> dict[str, dict[str, float | int | None]]:
        """Return count, p99 and longest time of each kind of quantum so far, ready for JSON."""
        return {kind: times.summary() for kind, times in self._quanta.items()}

    def gaps(self) -> dict[str, float | int | None]:
        """Return count, p99 and longest of the times between tokens so far, ready for JSON."""
        return self._gaps.summary()


def _bucket(seconds: float) -> int:
    """Return the first bucket whose bound is not below ``seconds``."""
    return max(0, math.ceil(math.log(max(seconds, _SMALLEST_S) / _SMALLEST_S, _GROWTH)))
