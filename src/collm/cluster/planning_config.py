"""What the operator may set about sharing out traffic and training."""

import math
from dataclasses import dataclass
from typing import Literal

from collm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningConfig:
    """The slow loop: every period it shares out traffic, training time and credit anew."""

    policy: Literal["none", "adaptive"] = "none"
    """``adaptive`` plans by forecasts and measured quality; ``none`` leaves every replica to its
    own settings and the router to its predictions."""
    period_s: float = 60.0
    """Time between two allocations."""
    horizon_rounds: float = 30.0
    """Periods for which what is learned now is counted as a gain."""
    max_credit_share: float = 0.0
    """Most of a replica's time that training may be granted beyond slack; 0 grants none, and
    pacing.credit_share is the least that a replica gives."""
    attainment_target: float = 0.95
    """Share of requests that should meet every objective: misses beyond count the more, until they
    are made up for."""
    miss_price: float = 100.0
    """Quality that each missed request counts as beside its own: what is learned pays for a whole
    horizon of requests, and would otherwise be worth a tenth of the ones that are served now."""
    min_arrivals_per_s: float = 0.05
    """Requests per second that learning counts on at least, so that it goes on when none come."""
    valid_s: float = 600.0
    """Time for which replicas keep an allocation when the front is gone."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("period_s", "horizon_rounds", "valid_s"):
            value = getattr(self, name)
            self._check(name, math.isfinite(value) and value > 0.0, "finite and above 0")
        self._check("valid_s", self.valid_s >= 2.0 * self.period_s, "at least two periods")
        is_credit = 0.0 <= self.max_credit_share <= 0.9
        self._check("max_credit_share", is_credit, "from 0 to 0.9")
        self._check("attainment_target", 0.0 < self.attainment_target <= 1.0, "above 0, up to 1")
        is_price = math.isfinite(self.miss_price) and self.miss_price >= 0.0
        self._check("miss_price", is_price, "finite and 0 or more")
        is_rate = math.isfinite(self.min_arrivals_per_s) and self.min_arrivals_per_s >= 0.0
        self._check("min_arrivals_per_s", is_rate, "finite and 0 or more")

    def _check(self, name: str, is_allowed: bool, allowed: str) -> None:
        if not is_allowed:
            raise ConfigError(f"planning.{name} is {getattr(self, name)}; allowed is {allowed}")
