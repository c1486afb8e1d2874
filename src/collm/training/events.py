"""What training tells the replica: frozen values, taken after each quantum."""

from dataclasses import dataclass

from torch import Tensor

from collm.lora.state import AdapterState


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
    """Cross-entropy per supervised token before the step, in nats."""
    grad_norm: float
    was_skipped: bool
    """Whether a non-finite gradient was thrown away instead of applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutReport:
    """One evaluation on held-out samples."""

    adapter: str
    step: int
    loss: float
    """Cross-entropy per supervised token, in nats."""
    active_loss: float
    """The same of the version that is served."""
    num_samples: int
    candidate: AdapterState | None
    """The shadow as evaluated, if it is better than what is served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSnapshot:
    """Everything a job needs to go on after a restart."""

    adapter: str
    tensors: dict[str, Tensor]
    """Copies of parameters and optimizer moments; nobody writes them."""
    meta: dict[str, str]


TrainingEvent = TrainReport | HeldOutReport | TrainingSnapshot
