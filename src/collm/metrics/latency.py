"""Percentiles of times."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank percentile: the smallest value that ``share`` of all reach.

    Args:
        values: In any order; an empty sequence has no percentiles.
        share: In (0, 1].

    Raises:
        ValueError: ``share`` is outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"share of a percentile must be in (0, 1], not {share}")
    if not values:
        return None
    # The rounding keeps 0.07 * 100 = 7.000000000000001 from asking for the eighth value.
    rank = math.ceil(round(share * len(values), 9))
    return sorted(values)[rank - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySummary:
    """The usual percentiles of a set of times, in seconds; ``None`` where there were none."""

    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    max_s: float | None


def summarize_latency(values: Iterable[float | None]) -> LatencySummary:
    """Summarize times in seconds, leaving out requests that have none (``None``)."""
    known = sorted(value for value in values if value is not None)
    return LatencySummary(
        p50_s=percentile(known, 0.5),
        p95_s=percentile(known, 0.95),
        p99_s=percentile(known, 0.99),
        max_s=known[-1] if known else None,
    )
