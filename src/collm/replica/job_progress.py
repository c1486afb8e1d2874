"""What is known of one adapter's learning."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collm.metrics.goodput import paper_quality
from collm.store.jobs import JobStatus
from collm.types import Evaluation, VersionId


@dataclass(frozen=True, slots=True)
class Quality:
    """How good what is served is: Q = 1 / max(CE, 0.1)."""

    value: float
    noise: float
    """Its standard error."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What one side came to on held-out samples."""

    loss: float
    """Mean nats per supervised token."""
    error: float | None
    """Standard error of the mean; ``None`` where nobody says it."""
    exact_share: float | None
    """Of its short answers, the share that is exactly right; ``None`` without any."""


@dataclass(slots=True)
class JobProgress:
    """What is known of one adapter's learning; outlives its job, for people to see."""

    job_id: str
    num_trained_tokens: int
    """Over all the job's lives."""
    status: JobStatus = JobStatus.RUNNING
    step: int = 0
    num_tokens: int = 0
    num_step_tokens: int = 0
    """Of the latest step."""
    num_samples: int = 0
    loss: float | None = None
    shadow: HeldOut | None = None
    active: HeldOut | None = None
    """What is served; ``None`` until it was measured."""
    evaluation: Evaluation | None = None
    """The latest point of its curve."""
    num_skipped: int = 0
    done_share: float | None = None
    """Of a job that has an end; ``None`` before its first step here."""
    result: VersionId | None = None
    error: str | None = None
    """Why the adapter learns no more."""

    def snapshot(self) -> dict[str, object]:
        """Return it ready for JSON."""
        return {
            "job": self.job_id,
            "status": str(self.status),
            "step": self.step,
            "done_share": self.done_share,
            "training_tokens": self.num_tokens,
            "training_samples": self.num_samples,
            "training_loss": _finite(self.loss),
            "held_out_loss": _loss(self.shadow),
            "active_held_out_loss": _loss(self.active),
            "held_out_exact_match": self.shadow and self.shadow.exact_share,
            "active_exact_match": self.active and self.active.exact_share,
            "skipped_steps": self.num_skipped,
            "error": self.error,
        }

    def quality(self) -> Quality | None:
        """Return the quality of what is served; ``None`` before it was measured."""
        loss = _loss(self.active)
        if self.active is None or loss is None:
            return None
        value, error = paper_quality(loss), self.active.error
        # An error that nobody knows may be as large as the loss.
        return Quality(value, value * error / loss if error is not None and loss > 0.0 else value)


def checkpoint_metrics(
    numbers: Mapping[str, Any], training_loss: float | None = None
) -> dict[str, Any]:
    """Return the metrics of the checkpoint that a promoted version is, by what spoke for it."""
    metrics = {"full_valid_loss": numbers.get("candidate_loss"), **numbers}
    return metrics if training_loss is None else metrics | {"train_loss": training_loss}


def _loss(side: HeldOut | None) -> float | None:
    return None if side is None else _finite(side.loss)


def _finite(loss: float | None) -> float | None:
    """Return a loss as JSON can carry it."""
    return loss if loss is not None and math.isfinite(loss) else None
