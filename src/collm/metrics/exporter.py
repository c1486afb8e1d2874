"""What one replica shows to Prometheus."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest

from collm.metrics.learning import LearningMetrics
from collm.metrics.loop_times import LoopTimes
from collm.metrics.metric_set import Definition
from collm.metrics.records import BLAMELESS, Objectives, Outcome, RequestRecord
from collm.metrics.service_times import ServiceTimes
from collm.metrics.serving import ServingMetrics
from collm.metrics.totals import Totals
from collm.types import BASE, GradientSums, RollbackCause, StepLoad, VersionId

Origin = Literal["learned", "brought"]

_NO_GRADIENTS = GradientSums()
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of what ``ReplicaMetrics.render`` returns."""


class ReplicaMetrics:
    """Counters of one replica, in a registry of their own; safe to use from several threads.

    ``times`` holds the loop's times, ``totals`` what the front plans with, ``service`` how requests
    fared: plain numbers, for the thread that counts them.

    Args:
        model_name: The base model's id, a label of all serving metrics.
        objectives: What ``collm_slo_requests_total`` holds requests against.
        wall_s: Seconds since 1970.
    """

    def __init__(
        self,
        model_name: str,
        objectives: Objectives,
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._model_name = model_name
        self._objectives = objectives
        self._wall_s = wall_s
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._serving = ServingMetrics(self._registry, model_name)
        self._learning = LearningMetrics(self._registry)
        self._active: dict[str, VersionId] = {}
        self._training: set[str] = set()
        self.times = LoopTimes()
        self.totals = Totals(objectives, self.times)
        self.service = ServiceTimes(objectives)
        loop_seconds = self._learning.loop_seconds
        self._serve_seconds = loop_seconds.labels("serve")
        self._idle_seconds = loop_seconds.labels("idle")
        self._prefill_tokens = self._serving.step_tokens.labels(model_name, "prefill")
        self._decode_tokens = self._serving.step_tokens.labels(model_name, "decode")
        # Present from the start: an alert on a share has no gap before the first miss.
        for outcome in get_args(Outcome):
            self._serving.outcomes.labels(model_name, outcome)
        for result in ("met", "missed"):
            self._serving.slo.labels(model_name, result)
        for name, seconds in (("ttft", objectives.ttft_s), ("tpot", objectives.tpot_s)):
            self._serving.objective.labels(model_name, name).set(seconds)
        self.set_jobs({})

    @property
    def serving_definitions(self) -> tuple[Definition, ...]:
        """What the metrics of serving mean."""
        return tuple(self._serving.definitions)

    @property
    def learning_definitions(self) -> tuple[Definition, ...]:
        """What the metrics of learning mean."""
        return tuple(self._learning.definitions)

    # Serving

    def arrived(self, model: str, now_s: float) -> None:
        """Count a request for ``model`` that arrived."""
        self.totals.arrived(model, now_s)

    def observe_request(self, record: RequestRecord) -> None:
        """Count a request that ended, whatever its outcome."""
        self.totals.ended(record)
        self.service.observe_request(record)
        serving, name = self._serving, self._model_name
        serving.outcomes.labels(name, record.outcome).inc()
        serving.prompt_tokens.inc(record.num_prompt_tokens)
        serving.generation_tokens.inc(record.num_output_tokens)
        serving.mixed.inc(record.is_mixed)
        if record.outcome not in BLAMELESS:
            result = "met" if record.met(self._objectives) else "missed"
            serving.slo.labels(name, result).inc()
        if record.outcome == "completed":
            self._observe_completed(record)
        _observe_if_known(serving.ttft, record.ttft_s)
        _observe_if_known(serving.tpot, record.tpot_s)
        _observe_if_known(serving.longest_gap, record.max_gap_s)

    def _observe_completed(self, record: RequestRecord) -> None:
        serving = self._serving
        serving.successes.labels(self._model_name, record.finish_reason or "stop").inc()
        serving.prompt_length.observe(record.num_prompt_tokens)
        serving.output_length.observe(record.num_output_tokens)
        _observe_if_known(serving.latency, record.latency_s)
        _observe_if_known(serving.queue_time, record.queue_s)
        _observe_if_known(serving.prefill_time, record.prefill_s)
        _observe_if_known(serving.decode_time, record.decode_s)
        if record.admitted_at_s is not None and record.last_token_at_s is not None:
            serving.inference_time.observe(record.last_token_at_s - record.admitted_at_s)

    def observe_token_gap(self, seconds: float) -> None:
        """Count one time between two tokens of a request."""
        self.times.add_gap(seconds)
        self._serving.token_gap.observe(seconds)
        self._serving.old_token_gap.observe(seconds)

    def observe_step(self, load: StepLoad, seconds: float, prefill_share: float) -> None:
        """Count one serving step of which ``prefill_share`` went into prefill."""
        self.times.add("serve", seconds)
        self.service.observe_step(seconds, prefill_share)
        self._serve_seconds.inc(seconds)
        self._serving.steps.inc()
        self._prefill_tokens.inc(load.num_prefill_tokens)
        self._decode_tokens.inc(load.num_decode_tokens)

    def set_queue(self, num_running: int, num_waiting: int) -> None:
        """Show how many sequences run and wait."""
        self._serving.running.set(num_running)
        self._serving.waiting.set(num_waiting)

    def set_adapters(self, running: Iterable[str], waiting: Iterable[str], max_loaded: int) -> None:
        """Show which adapters running and waiting requests ask for, and how many can be loaded."""
        gauge = self._serving.lora_requests
        gauge.clear()  # one series at a time, whatever the combination
        names = (",".join(sorted(running)), ",".join(sorted(waiting)))
        gauge.labels(self._model_name, max_loaded, *names).set(self._wall_s())

    def describe_cache(self, block_size: int, num_blocks: int) -> None:
        """Show the shape of the KV cache."""
        self._serving.cache_config.labels(self._model_name, block_size, num_blocks).set(1)

    def set_cache_usage(self, num_used_blocks: int, num_blocks: int) -> None:
        """Show how full the KV cache is; raises ``ZeroDivisionError`` without any block."""
        share = num_used_blocks / num_blocks
        self._serving.cache_usage.set(share)
        self._serving.old_cache_usage.set(share)
        self._serving.used_blocks.set(num_used_blocks)
        self._serving.num_blocks.set(num_blocks)

    def looked_up_prefix(self, num_queried_tokens: int, num_hit_tokens: int) -> None:
        """Count one look into the prefix cache."""
        self.totals.looked_up_prefix(num_queried_tokens, num_hit_tokens)
        self._serving.prefix_queries.inc(num_queried_tokens)
        self._serving.prefix_hits.inc(num_hit_tokens)

    def preempted(self, num_sequences: int = 1) -> None:
        """Count sequences that lost their KV blocks."""
        self._serving.preemptions.inc(num_sequences)

    # The loop's time

    def observe_quantum(
        self,
        kind: str,
        seconds: float,
        work: Literal["train", "evaluate"] = "train",
        adapter: str = "",
    ) -> None:
        """Count one quantum of an adapter's training or held-out evaluation."""
        self.totals.trained(adapter, seconds, is_evaluation=work == "evaluate")
        self.times.add(work, seconds)
        self.times.add_quantum(kind, seconds)
        self._learning.quantum_seconds.labels(kind).observe(seconds)
        self._learning.loop_seconds.labels(work).inc(seconds)

    def observe_idle(self, seconds: float, *, is_held_back: bool = False) -> None:
        """Count time in which the loop did nothing; ``is_held_back``: training was not allowed."""
        self.times.add("idle", seconds)
        self._idle_seconds.inc(seconds)
        if is_held_back:
            self._learning.held_back.inc(seconds)

    def show_credit(self, share: Callable[[], float]) -> None:
        """Show, at each look, what ``share`` returns: the time that training has for sure."""
        self._learning.credit_share.set_function(share)

    # Learning

    def set_jobs(self, num_by_status: Mapping[str, int]) -> None:
        """Show how many jobs there are of each status: ``running``, ``paused``."""
        for status in ("running", "paused"):
            self._learning.jobs.labels(status).set(num_by_status.get(status, 0))

    def job_began(self, adapter: str) -> None:
        """Note that a job trains from now on; what it starts from is on disk."""
        self._training.add(adapter)
        self.checkpoint_saved(adapter)

    def job_ended(self, adapter: str, status: str) -> None:
        """Count a job that trains no more."""
        self._training.discard(adapter)
        self._learning.ended_jobs.labels(status).inc()
        self._learning.checkpoint_at.remove(adapter)

    def checkpoint_saved(self, adapter: str) -> None:
        """Show that a job's state of now is on disk, unless the job has ended meanwhile."""
        if adapter in self._training:
            self._learning.checkpoint_at.labels(adapter).set(self._wall_s())

    def training_step(
        self,
        adapter: str,
        num_tokens: int,
        loss: float,
        gradient: GradientSums = _NO_GRADIENTS,
        *,
        was_skipped: bool = False,
    ) -> None:
        """Count one optimizer step over ``num_tokens`` with its mean loss in nats per token."""
        self.totals.stepped(adapter, num_tokens, loss, gradient)
        self._learning.optimizer_steps.labels(adapter).inc()
        self._learning.skipped_steps.labels(adapter).inc(was_skipped)
        self._learning.training_tokens.labels(adapter).inc(num_tokens)
        self._learning.training_loss.labels(adapter).set(loss)

    def measured(self, adapter: str, loss: float, exact_share: float | None) -> None:
        """Show what the shadow came to on held-out samples.

        Args:
            adapter: The adapter.
            loss: Nats per token.
            exact_share: Of the short answers; ``None`` without any.
        """
        self._learning.held_out_loss.labels(adapter).set(loss)
        if exact_share is not None:
            self._learning.exact_match.labels(adapter).set(exact_share)

    def measured_active(self, adapter: str, loss: float, exact_share: float | None) -> None:
        """Show the same of the active version."""
        version = self._active.get(adapter, BASE)
        self._learning.active_loss.labels(adapter, version).set(loss)
        if exact_share is not None:
            self._learning.active_exact_match.labels(adapter, version).set(exact_share)

    def judged(self, adapter: str, verdict: str, num_samples: int) -> None:
        """Count a verdict on a candidate."""
        self._learning.decisions.labels(adapter, verdict).inc()
        self._learning.compared_samples.labels(adapter).inc(num_samples)

    # Versions

    def serves(self, adapter: str, version: VersionId) -> None:
        """Show the version that is active now."""
        before = self._active.get(adapter, BASE)
        if before == version:
            return
        self._forget(adapter, before)
        self._active[adapter] = version
        self._learning.active_version.labels(adapter, version).set(1)

    def promoted(self, adapter: str, version: VersionId, origin: Origin) -> None:
        """Count a promotion and show the version that is active now."""
        self._learning.promotions.labels(adapter, origin).inc()
        self.serves(adapter, version)

    def rolled_back(self, adapter: str, version: VersionId, cause: RollbackCause) -> None:
        """Count a rollback and show the version that is active now; ``BASE`` is none."""
        self._learning.rollbacks.labels(adapter, cause).inc()
        if version == BASE:
            self.unloaded(adapter)
        else:
            self.serves(adapter, version)

    def unloaded(self, adapter: str) -> None:
        """Show no active version of an adapter any more."""
        self._forget(adapter, self._active.pop(adapter, BASE))

    def render(self) -> bytes:
        """Return everything in Prometheus' text format (``CONTENT_TYPE``)."""
        return generate_latest(self._registry)

    def _forget(self, adapter: str, version: VersionId) -> None:
        """Drop the series of a version that is no longer active; without any, nothing happens."""
        self._learning.active_version.remove(adapter, version)
        self._learning.active_loss.remove(adapter, version)
        self._learning.active_exact_match.remove(adapter, version)


def _observe_if_known(histogram: Histogram, seconds: float | None) -> None:
    if seconds is not None:
        histogram.observe(seconds)
