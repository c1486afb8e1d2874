"""What the operator may set about the quality gate."""

import math
from dataclasses import dataclass

from collm.errors import ConfigError

GENERAL = "general"
"""Slice of text that no adapter is trained for: it guards against forgetting, and has no say in
whether a candidate is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """When a candidate replaces what is served."""

    error: float = 0.05
    """Chance, per candidate, that one which is no better passes the test."""
    min_samples: int = 24
    """Held-out samples, general text not counted, before a candidate can be proven better; all of
    them if there are fewer."""
    max_samples: int = 256
    """Most held-out samples that one candidate is compared on, general text included."""
    min_slice_samples: int = 8
    """Samples of each slice before a candidate can pass, half as many of one whose loss is not even
    half way to its bound; a slice with fewer held-out samples in all is judged by what it has."""
    slice_bound: float = 0.1
    """Most that a slice's mean loss may rise, in nats per token."""
    slice_share: float = 0.25
    """Added to slice_bound: this share of the served version's mean loss on the slice."""
    general_bound: float = 0.3
    """Most that the mean loss on general text may rise, in nats per token."""
    evaluation_share: float = 0.1
    """Most compute that comparing takes, as a share of what training takes."""
    rotate_share: float = 0.25
    """Share of a comparison's samples that the next one replaces by others; 0 keeps them all."""
    max_worse: int = 3
    """Candidates proven worse in a row after which training starts again from what is served."""
    watch_error: float = 0.01
    """Chance, per promotion, that a version which is no worse on fresh feedback is rolled back."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("error", "watch_error"):
            self._check(name, 0.0 < getattr(self, name) < 1.0, "between 0 and 1, both excluded")
        for name in ("min_samples", "min_slice_samples", "max_worse"):
            self._check(name, getattr(self, name) >= 1, "1 or more")
        self._check(
            "max_samples",
            self.max_samples >= self.min_samples,
            f"min_samples ({self.min_samples}) or more",
        )
        for name in ("slice_bound", "slice_share", "general_bound"):
            value = getattr(self, name)
            self._check(name, math.isfinite(value) and value >= 0.0, "finite and 0 or more")
        self._check("evaluation_share", 0.0 < self.evaluation_share <= 1.0, "above 0 and at most 1")
        self._check("rotate_share", 0.0 <= self.rotate_share <= 1.0, "from 0 to 1")

    def share(self, slice_name: str) -> float:
        """Return the share of a slice's loss that is added to its bound."""
        return 0.0 if slice_name == GENERAL else self.slice_share

    def bound(self, slice_name: str) -> float:
        """Return how much the mean loss of a slice may rise, in nats per token."""
        return self.general_bound if slice_name == GENERAL else self.slice_bound

    def _check(self, name: str, is_allowed: bool, allowed: str) -> None:
        if not is_allowed:
            raise ConfigError(f"gate.{name} is {getattr(self, name)}; allowed is {allowed}")
