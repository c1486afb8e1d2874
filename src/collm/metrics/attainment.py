"""SLO attainment and how sure one can be of it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from collm.metrics.records import BLAMELESS, Objectives, RequestRecord

Z_95 = 1.959963984540054
"""Two-sided 95 % point of the normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """How many requests met every objective."""

    num_met: int
    num_counted: int
    """Every request that arrived, rejected and failed ones included, refused and aborted ones not.
    """
    num_aborted: int

    @property
    def share(self) -> float | None:
        """Return the share that met; ``None`` when nothing was counted."""
        return self.num_met / self.num_counted if self.num_counted else None

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % Wilson interval of the share."""
        return wilson_interval(self.num_met, self.num_counted)


def measure_attainment(records: Iterable[RequestRecord], objectives: Objectives) -> Attainment:
    """Count the records that met; rejected and failed ones miss, refused ones do not count.

    Aborts are counted apart.
    """
    num_met = num_counted = num_aborted = 0
    for record in records:
        if record.outcome in BLAMELESS:
            num_aborted += record.outcome == "aborted"
            continue
        num_counted += 1
        num_met += record.met(objectives)
    return Attainment(num_met=num_met, num_counted=num_counted, num_aborted=num_aborted)


def wilson_interval(num_hits: int, num_trials: int, z: float = Z_95) -> tuple[float, float]:
    """Return the Wilson score interval of a share; (0, 1) when nothing was tried.

    Raises:
        ValueError: ``num_hits`` is not between 0 and ``num_trials``.

    Source: E. B. Wilson, Journal of the American Statistical Association 22 (1927).
    """
    if not 0 <= num_hits <= num_trials:
        raise ValueError(f"num_hits must be between 0 and num_trials={num_trials}, not {num_hits}")
    if num_trials == 0:
        return 0.0, 1.0
    share = num_hits / num_trials
    widening = z * z / num_trials
    centre = (share + widening / 2) / (1 + widening)
    spread = math.sqrt(share * (1 - share) / num_trials + widening / (4 * num_trials))
    half_width = z * spread / (1 + widening)
    return max(0.0, centre - half_width), min(1.0, centre + half_width)
