"""The ratio of two shares that were measured on the same requests, and how sure one can be of it.

A pair is one request that two policies served: at the same time, beside the same others.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from collm.metrics.attainment import Z_95
from collm.metrics.latency import percentile
from collm.metrics.records import Objectives, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCounts:
    """What became of the same requests under two policies, ``new`` and ``old``."""

    num_both: int = 0
    """Met under both."""
    num_only_new: int = 0
    num_only_old: int = 0
    num_neither: int = 0

    def __add__(self, other: "PairCounts") -> "PairCounts":
        return PairCounts(
            num_both=self.num_both + other.num_both,
            num_only_new=self.num_only_new + other.num_only_new,
            num_only_old=self.num_only_old + other.num_only_old,
            num_neither=self.num_neither + other.num_neither,
        )

    @property
    def num_pairs(self) -> int:
        """Return how many requests there were."""
        return self.num_both + self.num_only_new + self.num_only_old + self.num_neither

    @property
    def ratio(self) -> float | None:
        """Return share met under ``new`` / share met under ``old``; ``None`` if none met."""
        num_old = self.num_both + self.num_only_old
        return (self.num_both + self.num_only_new) / num_old if num_old else None

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % Bonett-Price interval of the ratio; (0, inf) when nothing met.

        Unlike a bootstrap it says how little a few requests prove when all of them met. It takes
        the pairs for independent of each other.

        Source: D. G. Bonett, R. M. Price, Statistics in Medicine 25 (2006), the interval that
        combines two Wilson intervals.
        """
        num_new = self.num_both + self.num_only_new
        num_old = self.num_both + self.num_only_old
        num_seen = self.num_both + self.num_only_new + self.num_only_old
        if not num_seen:
            return 0.0, math.inf
        spread = math.sqrt(
            (self.num_only_new + self.num_only_old + 2) / ((num_new + 1) * (num_old + 1))
        )
        apart = _error(num_new, num_seen) + _error(num_old, num_seen)
        z = spread / apart * Z_95
        low_new, high_new = _wilson(num_new, num_seen, z)
        low_old, high_old = _wilson(num_old, num_seen, z)
        return low_new / high_old, high_new / low_old if low_old > 0.0 else math.inf


def pair_records(
    new: Sequence[RequestRecord], old: Sequence[RequestRecord], objectives: Objectives
) -> PairCounts:
    """Count the pairs of two equally long lists, a request at the same place in both.

    Raises:
        ValueError: The lists differ in length.
    """
    total = PairCounts()
    for one, other in zip(new, old, strict=True):
        is_new, is_old = one.met(objectives), other.met(objectives)
        total += PairCounts(
            num_both=is_new and is_old,
            num_only_new=is_new and not is_old,
            num_only_old=is_old and not is_new,
            num_neither=not is_new and not is_old,
        )
    return total


def bootstrap_ratio(
    blocks: Sequence[PairCounts], seed: int, num_draws: int = 10_000
) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of the ratio over ``blocks`` drawn with replacement.

    Whole blocks are drawn because requests that run side by side share their luck. ``None`` when
    some draw has no request that met under the old policy, as with too few blocks.
    """
    random = Random(seed)
    ratios = []
    for _ in range(num_draws):
        ratio = total_pairs(random.choices(blocks, k=len(blocks))).ratio if blocks else None
        if ratio is None:
            return None
        ratios.append(ratio)
    low, high = percentile(ratios, 0.025), percentile(ratios, 0.975)
    assert low is not None
    assert high is not None
    return low, high


def total_pairs(blocks: Iterable[PairCounts]) -> PairCounts:
    """Return the sum of several counts."""
    return sum(blocks, PairCounts())


def _error(num_met: int, num_seen: int) -> float:
    """Return the standard error of a share's logarithm."""
    share = (num_met + 1) / (num_seen + 2)
    return math.sqrt((1.0 - share) / (num_met + 1))


def _wilson(num_met: int, num_seen: int, z: float) -> tuple[float, float]:
    centre = 2 * num_met + z * z
    spread = z * math.sqrt(z * z + 4 * num_met * (1 - num_met / num_seen))
    scale = 2 * (num_seen + z * z)
    return (centre - spread) / scale, (centre + spread) / scale
