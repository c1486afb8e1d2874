"""What coordinator and members tell each other in a round. Standard library only, no tensors.

Every message checks itself when it is built, from JSON or not, and says which field is wrong.
``to_json`` gives plain values for ``json.dumps``; ``from_json`` takes what ``json.loads`` gives.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Generic, Self, TypeVar

from collm.federated.fields import Fields, check_field
from collm.types import GradientSums, VersionId

T = TypeVar("T")

_DIGEST = re.compile(r"[0-9a-f]{64}")


class RoundStatus(StrEnum):
    """How far a round is; the last three are final."""

    PLANNED = "planned"
    TRAINING = "training"
    AGGREGATING = "aggregating"
    GATING = "gating"
    PROMOTING = "promoting"
    DONE = "done"
    """The aggregate was promoted."""
    REFUSED = "refused"
    """The gate kept what is served."""
    ABANDONED = "abandoned"
    """No quorum, or nothing to promote for another reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """What every member of a round is asked to train."""

    adapter: str
    round: int
    """Counts from 1."""
    members: tuple[str, ...]
    """Ids of the replicas or sites asked; none twice."""
    base_version: VersionId | None
    """The version to train from; ``None`` for a fresh adapter."""
    max_tokens: int
    """Most tokens that each member trains on."""
    deadline_s: float
    """Seconds from receipt until the update is due."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        _check_named(self, "adapter")
        check_field(self, "round", self.round >= 1, "1 or more")
        is_set = bool(self.members) and len(set(self.members)) == len(self.members)
        check_field(
            self, "members", is_set and all(self.members), "names, at least one, none twice"
        )
        check_field(self, "max_tokens", self.max_tokens >= 1, "1 or more")
        is_positive = math.isfinite(self.deadline_s) and self.deadline_s > 0.0
        check_field(self, "deadline_s", is_positive, "finite and above 0")

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``from_json``."""
        return asdict(self) | {"members": list(self.members)}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read a plan; raises ``RoundError`` naming the field that is wrong."""
        fields = Fields(cls.__name__, value, cls.__slots__)
        return cls(
            adapter=fields.text("adapter"),
            round=fields.integer("round"),
            members=fields.texts("members"),
            base_version=_version(fields.optional_text("base_version")),
            max_tokens=fields.integer("max_tokens"),
            deadline_s=fields.number("deadline_s"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What a member says about the update that it offers; never any text."""

    adapter: str
    round: int
    """The round whose plan the update answers."""
    member: str
    base_version: VersionId | None
    """What it was trained from; ``None`` for a fresh adapter."""
    num_examples: int
    """Samples trained on since the base version."""
    num_tokens: int
    """Tokens trained on since the base version."""
    loss_before: float | None
    """Nats per token on the member's own held-out samples under the base; ``None`` unknown."""
    loss_after: float | None
    """The same under the update."""
    is_complete: bool
    """Whether the plan's tokens were trained on in full."""
    digest: str
    """SHA-256 over the bytes of the update's safetensors file, in hexadecimal."""
    gradient: GradientSums = GradientSums()
    """How far its gradients lay apart, since the member's report before."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("adapter", "member"):
            _check_named(self, name)
        check_field(self, "round", self.round >= 1, "1 or more")
        for name in ("num_examples", "num_tokens"):
            check_field(self, name, getattr(self, name) >= 0, "0 or more")
        for name in ("loss_before", "loss_after"):
            loss = getattr(self, name)
            check_field(self, name, loss is None or math.isfinite(loss), "finite or null")
        is_sum = all(getattr(self.gradient, name) >= 0 for name in GradientSums.__slots__)
        check_field(self, "gradient", is_sum, "sums of 0 or more")
        is_digest = _DIGEST.fullmatch(self.digest) is not None
        check_field(self, "digest", is_digest, "64 hexadecimal digits")

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``from_json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read a report; raises ``RoundError`` naming the field that is wrong."""
        fields = Fields(cls.__name__, value, cls.__slots__)
        return cls(
            adapter=fields.text("adapter"),
            round=fields.integer("round"),
            member=fields.text("member"),
            base_version=_version(fields.optional_text("base_version")),
            num_examples=fields.integer("num_examples"),
            num_tokens=fields.integer("num_tokens"),
            loss_before=fields.optional_number("loss_before"),
            loss_after=fields.optional_number("loss_after"),
            is_complete=fields.flag("is_complete"),
            digest=fields.text("digest"),
            gradient=_gradient(fields.optional_mapping("gradient")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePlan:
    """What every member is asked to compare on its own held-out samples."""

    adapter: str
    round: int
    candidate: VersionId
    active: VersionId | None
    """What the candidate would replace; ``None`` for the bare base model."""
    max_samples: int
    """Most held-out samples that a member compares."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("adapter", "candidate"):
            _check_named(self, name)
        check_field(self, "round", self.round >= 1, "1 or more")
        check_field(self, "max_samples", self.max_samples >= 1, "1 or more")

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``from_json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read a plan; raises ``RoundError`` naming the field that is wrong."""
        fields = Fields(cls.__name__, value, cls.__slots__)
        return cls(
            adapter=fields.text("adapter"),
            round=fields.integer("round"),
            candidate=VersionId(fields.text("candidate")),
            active=_version(fields.optional_text("active")),
            max_samples=fields.integer("max_samples"),
        )


@dataclass(frozen=True, slots=True)
class SliceSums:
    """Sums over one slice's samples of d = candidate's loss − active's, in nats per token."""

    n: int
    """Samples on which both losses are finite."""
    sum_d: float
    sum_d2: float
    sum_active: float = 0.0
    """Sum of the active version's losses on them."""

    def __post_init__(self) -> None:
        """Check that some differences could have these sums."""
        check_field(self, "n", self.n >= 0, "0 or more")
        check_field(self, "sum_d", math.isfinite(self.sum_d), "finite")
        check_field(
            self, "sum_d2", math.isfinite(self.sum_d2) and self.sum_d2 >= 0.0, "finite and >= 0"
        )
        is_loss = math.isfinite(self.sum_active) and self.sum_active >= 0.0
        check_field(self, "sum_active", is_loss, "finite and >= 0")
        # Cauchy and Schwarz, with room for rounding in the member's sums.
        least = self.sum_d * (self.sum_d / self.n) if self.n else self.sum_d**2
        is_possible = self.sum_d2 >= least * (1.0 - 1e-6) - 1e-12
        check_field(self, "sum_d2", is_possible, f"at least sum_d² / n = {least}")

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``from_json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read sums; raises ``RoundError`` naming the field that is wrong."""
        fields = Fields(cls.__name__, value, cls.__slots__)
        return cls(
            fields.integer("n"),
            fields.number("sum_d"),
            fields.number("sum_d2"),
            # Members of before it was told get no share of it added to their slices' bounds.
            fields.optional_number("sum_active") or 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """What one member found about a candidate."""

    member: str
    slices: Mapping[str, SliceSums]
    """By the slice's name, general text included."""
    num_not_finite: int = 0
    """Samples on which the candidate's loss is NaN or infinite; they are in no sum."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        _check_named(self, "member")
        check_field(self, "slices", all(self.slices), "sums by non-empty names")
        check_field(self, "num_not_finite", self.num_not_finite >= 0, "0 or more")

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``from_json``."""
        return {
            "member": self.member,
            "slices": {name: sums.to_json() for name, sums in self.slices.items()},
            "num_not_finite": self.num_not_finite,
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read a report; raises ``RoundError`` naming the field that is wrong."""
        fields = Fields(cls.__name__, value, cls.__slots__)
        slices = fields.mapping("slices")
        return cls(
            member=fields.text("member"),
            slices={name: SliceSums.from_json(sums) for name, sums in slices.items()},
            num_not_finite=fields.integer("num_not_finite"),
        )


@dataclass(frozen=True, slots=True)
class Progress(Generic[T]):
    """How far a member's work is; still under way with neither report nor error."""

    report: T | None = None
    error: str | None = None
    """Why there will be no report."""


def _version(text: str | None) -> VersionId | None:
    return None if text is None else VersionId(text)


def _gradient(value: Mapping[str, object] | None) -> GradientSums:
    """Read sums; none were written by members of before there were any."""
    if value is None:
        return GradientSums()
    fields = Fields(GradientSums.__name__, value, GradientSums.__slots__)
    return GradientSums(
        num_steps=fields.integer("num_steps"),
        num_differences=fields.integer("num_differences"),
        spread=fields.number("spread"),
        square=fields.number("square"),
        inverse_tokens=fields.number("inverse_tokens"),
    )


def _check_named(message: object, field: str) -> None:
    check_field(message, field, bool(getattr(message, field)), "a non-empty string")
