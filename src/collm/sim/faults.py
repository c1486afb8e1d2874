"""What may go wrong with a simulated replica."""

import math
from dataclasses import dataclass
from typing import Literal

from collm.errors import ConfigError

FaultKind = Literal["dies", "slow", "silent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One replica's misfortune."""

    replica: int
    """Number of the replica, from 0."""
    at_s: float
    kind: FaultKind
    """``dies``: its process is gone for good, and connections to it fail. ``slow``: its times are
    multiplied from now on. ``silent``: it stands still for a while and answers nobody."""
    factor: float = 2.0
    """Of one that is slow."""
    for_s: float = 5.0
    """Of one that is silent."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        is_when = self.replica >= 0 and 0.0 <= self.at_s < math.inf
        if not (is_when and 0.0 < self.factor < math.inf and 0.0 < self.for_s < math.inf):
            raise ConfigError(
                f"{self}: replica and at_s are 0 or more, factor and for_s above 0, all finite"
            )
