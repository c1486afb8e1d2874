"""How long requests took since the start, as plain numbers that only grow; fixed memory.

Whoever reads them twice knows what happened in between: percentiles of any stretch are those of
the difference, also of several replicas together.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from collm.metrics.records import Objectives, RequestRecord

_SMALLEST_S = 1e-3
_GROWTH = 1.07
"""Ratio of neighbouring bucket bounds, and so the resolution of percentiles: 7 %."""


class ServiceTimes:
    """First tokens, later tokens, and the phases of serving steps; used by one thread.

    Args:
        objectives: What requests are held against.
    """

    def __init__(self, objectives: Objectives) -> None:
        self._objectives = objectives
        self._phase_s = {"prefill": 0.0, "decode": 0.0}
        self._ttft: Counter[int] = Counter()
        self._tpot: Counter[int] = Counter()

    def observe_request(self, record: RequestRecord) -> None:
        """Count the times of a request that ended, whatever its outcome."""
        if record.ttft_s is not None:
            self._ttft[bucket(record.ttft_s)] += 1
        if record.tpot_s is not None:
            self._tpot[bucket(record.tpot_s)] += 1

    def observe_step(self, seconds: float, prefill_share: float) -> None:
        """Count one serving step of which this share went into prefill."""
        self._phase_s["prefill"] += seconds * prefill_share
        self._phase_s["decode"] += seconds * (1.0 - prefill_share)

    def show(self) -> dict[str, Any]:
        """Return everything ready for JSON, with the objectives that it is about."""
        return {
            "objectives": {"ttft_s": self._objectives.ttft_s, "tpot_s": self._objectives.tpot_s},
            "phase_seconds": dict(self._phase_s),
            "ttft": _rows(self._ttft),
            "tpot": _rows(self._tpot),
        }


def bucket(seconds: float) -> int:
    """Return the first bucket whose bound is not below ``seconds``."""
    return max(0, math.ceil(math.log(max(seconds, _SMALLEST_S) / _SMALLEST_S, _GROWTH)))


def percentile_s(counts: Mapping[int, int], share: float) -> float | None:
    """Return an upper bound of the nearest-rank percentile, at most 7 % above it.

    Args:
        counts: How many values fell into each bucket.
        share: The percentile, above 0 and at most 1.

    Returns:
        Seconds; ``None`` when there are no values.
    """
    num_left = math.ceil(round(share * sum(counts.values()), 9))
    for number in sorted(counts):
        num_left -= counts[number]
        if num_left <= 0 and counts[number] > 0:
            return _SMALLEST_S * _GROWTH**number
    return None


def counts_of(rows: Iterable[Iterable[int]]) -> Counter[int]:
    """Return buckets' counts as ``ServiceTimes.show`` has them."""
    return Counter({int(number): int(count) for number, count in rows})


def _rows(counts: Mapping[int, int]) -> list[list[int]]:
    return [[number, counts[number]] for number in sorted(counts)]
