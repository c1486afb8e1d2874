"""What training tells the replica: frozen values, taken after each quantum."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from collm.gate.exact_match import ExactMatch
from collm.gate.trial import PairedLoss, TrialReport
from collm.lora.state import AdapterState
from collm.types import GradientSums, VersionId


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    """One optimizer step."""

    adapter: str
    step: int
    """Steps taken so far, this one included."""
    num_tokens: int
    """Sample tokens behind the step."""
    num_samples: int
    loss: float
    """Cross-entropy per supervised token before the step, in nats, by the samples' weights."""
    grad_norm: float
    was_skipped: bool
    """Whether a non-finite gradient was thrown away instead of applied."""
    gradient: GradientSums = GradientSums()
    """How far the gradients of its micro-batches lie apart; empty if there was but one."""
    done_share: float | None = None
    """Share of the job that is done; ``None`` for one without an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineReport:
    """What is served was measured on held-out samples, before anything competes with it."""

    adapter: str
    step: int
    loss: float
    """Mean over samples of the cross-entropy per supervised token, in nats; infinite if broken."""
    error: float
    """Standard error of the loss."""
    num_samples: int
    exact: ExactMatch = ExactMatch()
    """Of the short answers among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutReport:
    """One trial of the shadow against what is served."""

    adapter: str
    step: int
    report: TrialReport
    candidate: AdapterState | None
    """The shadow as evaluated, exactly if it is proven better than what is served."""

    @property
    def loss(self) -> float:
        """The shadow's loss: mean nats per supervised token over the trial's samples."""
        return self.report.candidate_loss

    @property
    def active_loss(self) -> float:
        """The same of the version that is served."""
        return self.report.active_loss

    @property
    def num_samples(self) -> int:
        """Held-out samples compared."""
        return self.report.num_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSnapshot:
    """Everything a job needs to go on after a restart."""

    adapter: str
    tensors: dict[str, Tensor]
    """Copies of parameters and optimizer moments; nobody writes them."""
    meta: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowReset:
    """The shadow was thrown away; training goes on from what is served."""

    adapter: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A promoted version is proven worse on fresh feedback than the one before it."""

    adapter: str
    numbers: Mapping[str, Any]
    """What the decisions table records; JSON-ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinished:
    """A job took all its steps and its last evaluation."""

    adapter: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrained:
    """What a job learned for a round of learning together."""

    adapter: str
    number: int
    """The round's."""
    base: VersionId | None
    """What it was trained from; ``None`` for a fresh adapter."""
    state: AdapterState
    """The shadow as it was then."""
    num_examples: int
    """Samples learned since the base."""
    num_tokens: int
    """Tokens learned since the base."""
    loss_before: float | None
    """Nats per token on own held-out samples under the base; ``None`` if it was not measured."""
    loss_after: float | None
    """The same, on the same samples, under ``state``."""
    error_before: float | None
    """Standard error of ``loss_before``."""
    error_after: float | None
    num_measured: int
    """Samples behind the losses."""
    exact_before: ExactMatch = ExactMatch()
    """Of the short answers among them, under the base."""
    exact_after: ExactMatch = ExactMatch()
    is_complete: bool
    """Whether the round's tokens were used up."""
    gradient: GradientSums = GradientSums()
    """Of the steps since the report before, or the start of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFailed:
    """There is nothing to show for a round."""

    adapter: str
    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a job found about a round's candidate."""

    adapter: str
    number: int
    """The round's."""
    pairs: tuple[PairedLoss, ...]


RoundEvent = RoundTrained | RoundFailed | Compared

TrainingEvent = (
    TrainReport
    | BaselineReport
    | HeldOutReport
    | TrainingSnapshot
    | ShadowReset
    | Regression
    | JobFinished
    | RoundEvent
)
