"""What is known of one adapter's learning."""

import math
from dataclasses import dataclass

from collm.metrics.goodput import paper_quality
from collm.store.jobs import JobStatus
from collm.types import VersionId


@dataclass(frozen=True, slots=True)
class Quality:
    """How good what is served is: Q = 1 / max(CE, 0.1)."""

    value: float
    noise: float
    """Its standard error, as if losses varied between samples as much as they are large."""


@dataclass(slots=True)
class JobProgress:
    """What is known of one adapter's learning; outlives its job, for people to see."""

    job_id: str
    num_trained_tokens: int
    """Over all the job's lives."""
    status: JobStatus = JobStatus.RUNNING
    step: int = 0
    num_tokens: int = 0
    num_samples: int = 0
    loss: float | None = None
    held_out_loss: float | None = None
    active_loss: float | None = None
    num_measured: int = 0
    """Held-out samples behind the two losses."""
    num_skipped: int = 0
    result: VersionId | None = None
    error: str | None = None
    """Why the adapter learns no more."""

    def snapshot(self) -> dict[str, object]:
        """Return it ready for JSON."""
        return {
            "job": self.job_id,
            "status": str(self.status),
            "step": self.step,
            "training_tokens": self.num_tokens,
            "training_samples": self.num_samples,
            "training_loss": _finite(self.loss),
            "held_out_loss": _finite(self.held_out_loss),
            "active_held_out_loss": _finite(self.active_loss),
            "skipped_steps": self.num_skipped,
            "error": self.error,
        }

    def quality(self) -> Quality | None:
        """Return the quality of what is served; ``None`` before it was measured."""
        loss = _finite(self.active_loss)
        if loss is None or not self.num_measured:
            return None
        value = paper_quality(loss)
        return Quality(value, value / math.sqrt(self.num_measured))


def _finite(loss: float | None) -> float | None:
    """Return a loss as JSON can carry it."""
    return loss if loss is not None and math.isfinite(loss) else None
