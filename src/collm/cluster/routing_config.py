"""What the operator may set about routing and about watching replicas."""

import math
from dataclasses import dataclass

from collm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """How requests are spread over replicas."""

    rejects_late: bool = False
    """Turn a request away when no candidate can be expected to meet its objectives, rather than be
    late."""
    trust_s: float = 0.5
    """Age up to which a snapshot is believed; a few polls."""

    def __post_init__(self) -> None:
        """Check the range."""
        if not (math.isfinite(self.trust_s) and self.trust_s > 0.0):
            raise ConfigError(f"trust_s: {self.trust_s}, must be finite and above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """How replicas are watched, in seconds."""

    poll_every_s: float = 0.2
    """Time between two questions to a replica."""
    timeout_s: float = 0.5
    """How long an answer may take."""
    dead_after_s: float = 1.0
    """Longest time without an answer; a replica receives nothing afterwards."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("poll_every_s", "timeout_s", "dead_after_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0.0):
                raise ConfigError(f"{name}: {value}, must be finite and above 0")
        if self.dead_after_s < 2.0 * self.poll_every_s:
            raise ConfigError(
                f"dead_after_s: {self.dead_after_s}, must be at least two polls "
                f"({2.0 * self.poll_every_s})"
            )
