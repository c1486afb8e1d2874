"""The metrics of learning on one replica, and of where its loop's time goes.

No label has a value for each version: an adapter has one active version, and the series of the one
before it goes when it does.
"""

from prometheus_client import CollectorRegistry

from collm.metrics.buckets import QUANTUM_BUCKETS_S
from collm.metrics.metric_set import MetricSet


class LearningMetrics(MetricSet):
    """Training, evaluation and versions; the loop's time by kind of work."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._make_loop()
        self._make_training()
        self._make_versions()

    def _make_loop(self) -> None:
        self.loop_seconds = self.counter(
            "collm_loop_seconds_total",
            "Time of the step loop by kind of work: `serve`, `train`, `evaluate`, `idle`.",
            "work",
        )
        self.held_back = self.counter(
            "collm_training_held_back_seconds_total",
            "Idle time in which training had work and its budget did not allow it.",
        )
        self.quantum_seconds = self.histogram(
            "collm_quantum_seconds",
            "Time of one quantum of training or evaluation.",
            "kind",
            buckets=QUANTUM_BUCKETS_S,
        )
        self.credit_share = self.gauge(
            "collm_training_credit_ratio",
            "Share of wall time that training has for sure now, 0 to 1.",
        )

    def _make_training(self) -> None:
        self.jobs = self.gauge(
            "collm_jobs", "Fine-tuning jobs that are `running` or `paused`.", "status"
        )
        self.ended_jobs = self.counter(
            "collm_jobs_ended_total",
            "Fine-tuning jobs that have ended: `succeeded`, `failed` or `cancelled`.",
            "status",
        )
        self.training_tokens = self.counter(
            "collm_training_tokens_total", "Tokens trained on, padding left out.", "adapter"
        )
        self.optimizer_steps = self.counter(
            "collm_optimizer_steps_total", "Optimizer steps on the shadow.", "adapter"
        )
        self.skipped_steps = self.counter(
            "collm_optimizer_steps_skipped_total",
            "Optimizer steps thrown away because their gradient was not finite.",
            "adapter",
        )
        self.training_loss = self.gauge(
            "collm_training_loss", "Loss of the latest optimizer step, nats per token.", "adapter"
        )
        self.checkpoint_at = self.gauge(
            "collm_checkpoint_timestamp_seconds",
            "When a running job was last on disk, or began, in seconds since 1970; its age is the "
            "training that a crash would cost.",
            "adapter",
        )

    def _make_versions(self) -> None:
        self.held_out_loss = self.gauge(
            "collm_held_out_loss", "Latest held-out loss of the shadow, nats per token.", "adapter"
        )
        self.active_loss = self.gauge(
            "collm_active_held_out_loss",
            "Held-out loss of the active version on the same samples, nats per token; `base` is "
            "the bare base model.",
            "adapter",
            "version",
        )
        self.exact_match = self.gauge(
            "collm_held_out_exact_match_ratio",
            "Share of held-out short answers that the shadow gives exactly, 0 to 1.",
            "adapter",
        )
        self.active_exact_match = self.gauge(
            "collm_active_exact_match_ratio",
            "The same of the active version.",
            "adapter",
            "version",
        )
        self.decisions = self.counter(
            "collm_gate_decisions_total",
            "Candidates judged, by verdict: `better`, `worse`, `not_shown`, `slice_worse`, "
            "`not_finite`, `overtaken`.",
            "adapter",
            "verdict",
        )
        self.compared_samples = self.counter(
            "collm_gate_samples_total", "Held-out samples that verdicts rest on.", "adapter"
        )
        self.promotions = self.counter(
            "collm_promotions_total",
            "Swaps to a new active version, `learned` here or `brought` from outside.",
            "adapter",
            "origin",
        )
        self.rollbacks = self.counter(
            "collm_rollbacks_total",
            "Swaps back to the version before: `asked` for, or for a `regression` on feedback.",
            "adapter",
            "cause",
        )
        self.active_version = self.gauge(
            "collm_active_version_info",
            "Always 1; the version that new requests get.",
            "adapter",
            "version",
        )
