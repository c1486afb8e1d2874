"""What may go wrong with a simulated replica."""

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
        if self.replica < 0 or self.at_s < 0.0 or self.factor <= 0.0 or self.for_s <= 0.0:
            raise ConfigError(f"{self}: replica and at_s are 0 or more, factor and for_s above 0")
