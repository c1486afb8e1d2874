"""What the aggregating process is asked, and what it answers. No tensors: the front reads these."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from collm.errors import RoundError
from collm.federated.fields import Fields

REPORT_FILE = "report.json"
"""Name of the report in the output folder."""
EXIT_BAD_PLAN = 2
"""The plan cannot be read or carried out; standard error says why, and nothing was written."""
EXIT_NO_QUORUM = 3
"""Too few updates were fit to use; the output folder holds the report alone."""


class StrategyName(StrEnum):
    """How updates are combined; ``federated.strategies`` has the code."""

    SVD = "svd"
    FEDAVG = "fedavg"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFile:
    """One member's update on disk, with what decides its weight."""

    member: str
    path: Path
    """The update's weights file."""
    digest: str
    """SHA-256 over the file's bytes, as the member reported it."""
    num_examples: int
    demand: float = 0.0
    """Requests, or tokens, that the member answered in a window; the unit does not matter."""
    staleness: int = 0
    """Promotions since the base that it was trained from; 0 is the current base."""
    trained_from: Path | None = None
    """The weights file of a stale update's base; ``None`` for a fresh adapter."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("num_examples", "demand", "staleness"):
            if getattr(self, name) < 0:
                raise RoundError(
                    f"UpdateFile.{name} is {getattr(self, name)}; allowed is 0 or more",
                    member=self.member,
                )

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``from_json``."""
        return _plain(asdict(self))

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read an entry; raises ``RoundError`` naming the field that is wrong."""
        fields = Fields(cls.__name__, value, cls.__slots__)
        return cls(
            member=fields.text("member"),
            path=Path(fields.text("path")),
            digest=fields.text("digest"),
            num_examples=fields.integer("num_examples"),
            demand=fields.number("demand"),
            staleness=fields.integer("staleness"),
            trained_from=_path(fields.optional_text("trained_from")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatePlan:
    """Everything that the aggregating process needs to know."""

    strategy: StrategyName
    rank: int
    """Rank of the result."""
    min_updates: int
    """Quorum: updates trained from the current base that must be fit to use."""
    base_model: str
    """The base model's id, for the result's ``adapter_config.json``."""
    base: Path | None
    """Weights file of the version that the round started from, its scale folded into B as this
    process and ``lora.peft_folder`` write it; ``None`` for a fresh adapter."""
    updates: tuple[UpdateFile, ...]
    """No member twice: of one that is both late and in time, the newer update."""
    output: Path
    """Folder for the result; must not exist yet, and appears whole or not at all."""
    server_rate: float = 1.0
    """How far the result goes from the base towards the updates' sum."""
    max_update_bytes: int = 2**31
    """Largest file that is read."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("rank", "min_updates", "max_update_bytes"):
            if getattr(self, name) < 1:
                raise RoundError(
                    f"AggregatePlan.{name} is {getattr(self, name)}; allowed is 1 or more"
                )
        if not (math.isfinite(self.server_rate) and self.server_rate > 0.0):
            rate = self.server_rate
            raise RoundError(f"AggregatePlan.server_rate is {rate}; allowed is finite and above 0")
        members = [update.member for update in self.updates]
        if len(set(members)) < len(members):
            raise RoundError(f"AggregatePlan.updates names a member twice: {', '.join(members)}")

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``from_json``."""
        updates = [update.to_json() for update in self.updates]
        return _plain(asdict(self)) | {"strategy": self.strategy.value, "updates": updates}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read a plan; raises ``RoundError`` naming the field that is wrong."""
        fields = Fields(cls.__name__, value, cls.__slots__)
        return cls(
            strategy=_strategy(fields.text("strategy")),
            rank=fields.integer("rank"),
            min_updates=fields.integer("min_updates"),
            base_model=fields.text("base_model"),
            base=_path(fields.optional_text("base")),
            updates=tuple(UpdateFile.from_json(item) for item in fields.items("updates")),
            output=Path(fields.text("output")),
            server_rate=fields.number("server_rate"),
            max_update_bytes=fields.integer("max_update_bytes"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateReport:
    """What became of a plan."""

    weights: Mapping[str, float]
    """By member, summing to one; empty without a quorum."""
    refused: Mapping[str, str]
    """Why an update was left out, by member."""
    digest: str | None = None
    """SHA-256 over the bytes of the result's weights file; ``None`` without a quorum."""
    bias_share: float | None = None
    """What averaging A and B would have got wrong, as a share of the exact sum."""
    energy_share: float | None = None
    """Share of the exact sum's ‖ΔW‖² that the result's rank kept."""

    @property
    def is_aggregated(self) -> bool:
        """Whether there is a result."""
        return self.digest is not None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``from_json``."""
        plain = asdict(self)
        return plain | {"weights": dict(self.weights), "refused": dict(self.refused)}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read a report; raises ``RoundError`` naming the field that is wrong."""
        fields = Fields(cls.__name__, value, cls.__slots__)
        weights = fields.mapping("weights")
        refused = fields.mapping("refused")
        shares = Fields(f"{cls.__name__}.weights", weights, weights)
        reasons = Fields(f"{cls.__name__}.refused", refused, refused)
        return cls(
            weights={member: shares.number(member) for member in weights},
            refused={member: reasons.text(member) for member in refused},
            digest=fields.optional_text("digest"),
            bias_share=fields.optional_number("bias_share"),
            energy_share=fields.optional_number("energy_share"),
        )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(v) if isinstance(v, Path) else v for name, v in values.items()}


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _strategy(name: str) -> StrategyName:
    try:
        return StrategyName(name)
    except ValueError:
        allowed = ", ".join(StrategyName)
        raise RoundError(f"AggregatePlan.strategy is {name!r}; allowed are {allowed}") from None
