"""What a replica is told of an allocation: its own part. Standard library only, no tensors."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from collm.federated.fields import Fields, check_field

_MAX_NUMBER = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterAllotment:
    """What one adapter gets on a replica."""

    credit_share: float
    """Share of wall time guaranteed beyond slack."""
    time_share: float
    """Share of the replica's training time, above 0; they need not add up to 1."""
    tokens_per_step: int
    """Sample tokens accumulated before each optimizer step."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_field(self, "credit_share", 0.0 <= self.credit_share < 1.0, "in [0, 1)")
        check_field(self, "time_share", 0.0 < self.time_share <= 1.0, "in (0, 1]")
        check_field(self, "tokens_per_step", self.tokens_per_step >= 1, "1 or more")

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read one; raises ``RoundError`` naming the field that is wrong."""
        fields = Fields(cls.__name__, value, cls.__slots__)
        return cls(
            credit_share=fields.number("credit_share"),
            time_share=fields.number("time_share"),
            tokens_per_step=fields.integer("tokens_per_step"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """One replica's part of an allocation. The latest one received is in force."""

    number: int
    """The allocation's, from 1."""
    valid_s: float
    """Seconds from receipt after which the replica's own settings are in force again, should no
    newer one come: long enough to outlive a front."""
    adapters: Mapping[str, AdapterAllotment]
    """By adapter; others keep their own settings."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_field(self, "number", 1 <= self.number <= _MAX_NUMBER, f"from 1 to {_MAX_NUMBER}")
        is_positive = math.isfinite(self.valid_s) and self.valid_s > 0.0
        check_field(self, "valid_s", is_positive, "finite and above 0")
        check_field(self, "credit_share", self.credit_share < 1.0, "below 1 in all")

    @property
    def credit_share(self) -> float:
        """Credit over all adapters."""
        return sum(one.credit_share for one in self.adapters.values())

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``from_json``."""
        adapters = {name: asdict(one) for name, one in self.adapters.items()}
        return {"number": self.number, "valid_s": self.valid_s, "adapters": adapters}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read an allotment; raises ``RoundError`` naming the field that is wrong."""
        fields = Fields(cls.__name__, value, cls.__slots__)
        return cls(
            number=fields.integer("number"),
            valid_s=fields.number("valid_s"),
            adapters={
                name: AdapterAllotment.from_json(one)
                for name, one in fields.mapping("adapters").items()
            },
        )
