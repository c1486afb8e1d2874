"""What one replica shows to Prometheus: ``collm_…`` plus the vLLM names dashboards know."""

from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from collm.metrics.loop_times import LoopTimes
from collm.metrics.records import BLAMELESS, Objectives, Outcome, RequestRecord
from collm.types import StepLoad, VersionId

Work = Literal["serve", "train", "evaluate", "idle"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of what ``ReplicaMetrics.render`` returns."""

LATENCY_BUCKETS_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 15.0, 30.0, 60.0,
)  # fmt: skip
"""From a GPU's token to a long answer on a CPU; 0.1 and 0.8 are the default objectives."""


class ServingMetrics:
    """Requests, tokens, queues and blocks."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ["model_name", *labels], registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ["model_name"], registry=registry).labels(model_name)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(
                name, text, ["model_name"], buckets=LATENCY_BUCKETS_S, registry=registry
            ).labels(model_name)

        self.running = gauge("vllm:num_requests_running", "Requests that hold KV blocks.")
        self.waiting = gauge("vllm:num_requests_waiting", "Requests that wait for admission.")
        self.cache_usage = gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")
        self.old_cache_usage = gauge(
            "vllm:gpu_cache_usage_perc", "The same under its older name, also on a CPU."
        )
        self.prompt_tokens = counter(
            "vllm:prompt_tokens_total", "Prompt tokens of finished requests."
        ).labels(model_name)
        self.generation_tokens = counter(
            "vllm:generation_tokens_total", "Output tokens of finished requests."
        ).labels(model_name)
        self.preemptions = counter(
            "vllm:num_preemptions_total", "Sequences that lost their KV blocks to others."
        ).labels(model_name)
        self.prefix_queries = counter(
            "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."
        ).labels(model_name)
        self.prefix_hits = counter(
            "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache."
        ).labels(model_name)
        self.successes = counter(
            "vllm:request_success_total", "Completed requests.", "finished_reason"
        )
        self.ttft = histogram("vllm:time_to_first_token_seconds", "Arrival to first token.")
        self.tpot = histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time per token after the first, one value per request.",
        )
        self.token_gap = histogram(
            "vllm:inter_token_latency_seconds", "Each single time between two tokens."
        )
        self.old_token_gap = histogram(
            "vllm:time_per_output_token_seconds", "The same under its older name."
        )
        self.latency = histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.")
        self.outcomes = counter("collm_requests_total", "Requests by outcome.", "outcome")
        self.slo = counter(
            "collm_slo_requests_total", "Requests by whether every objective was met.", "result"
        )
        self.longest_gap = histogram(
            "collm_longest_token_gap_seconds", "Longest time between two tokens of a request."
        )
        self.step_tokens = counter(
            "collm_step_tokens_total", "Tokens computed while serving.", "phase"
        )
        self.used_blocks = gauge("collm_kv_blocks_used", "KV blocks in use.")
        self.num_blocks = gauge("collm_kv_blocks", "KV blocks there are.")


class LearningMetrics:
    """Training, evaluation and versions; the loop's time by kind of work."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        self.loop_seconds = counter(
            "collm_loop_seconds_total", "Time of the step loop by kind of work.", "work"
        )
        self.quantum_seconds = Histogram(
            "collm_quantum_seconds",
            "Time of one training quantum.",
            ["kind"],
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.training_tokens = counter(
            "collm_training_tokens_total", "Tokens trained on, padding left out.", "adapter"
        )
        self.optimizer_steps = counter(
            "collm_optimizer_steps_total", "Optimizer steps on the shadow.", "adapter"
        )
        self.training_loss = gauge(
            "collm_training_loss", "Loss of the latest optimizer step, nats per token.", "adapter"
        )
        self.held_out_loss = gauge(
            "collm_held_out_loss", "Latest held-out loss, nats per token.", "adapter"
        )
        self.promotions = counter(
            "collm_promotions_total", "Versions made active, rollbacks included.", "adapter"
        )
        self.active_version = gauge(
            "collm_active_version_info", "1 for the version that new requests get.",
            "adapter", "version",
        )  # fmt: skip


class ReplicaMetrics:
    """Counters of one replica, in a registry of their own; safe to use from several threads.

    ``times`` holds the loop's times as plain numbers, for the thread that counts them.

    Args:
        model_name: The base model's id, a label of all serving metrics.
        objectives: What ``collm_slo_requests_total`` holds requests against.
    """

    def __init__(self, model_name: str, objectives: Objectives) -> None:
        self._model_name = model_name
        self._objectives = objectives
        self._registry = CollectorRegistry()
        self._serving = ServingMetrics(self._registry, model_name)
        self._learning = LearningMetrics(self._registry)
        self._active: dict[str, VersionId] = {}
        self.times = LoopTimes()
        loop_seconds = self._learning.loop_seconds
        self._serve_seconds = loop_seconds.labels("serve")
        self._idle_seconds = loop_seconds.labels("idle")
        self._prefill_tokens = self._serving.step_tokens.labels(model_name, "prefill")
        self._decode_tokens = self._serving.step_tokens.labels(model_name, "decode")
        for outcome in get_args(Outcome):
            self._serving.outcomes.labels(model_name, outcome)

    def observe_request(self, record: RequestRecord) -> None:
        """Count a request that ended, whatever its outcome."""
        serving, name = self._serving, self._model_name
        serving.outcomes.labels(name, record.outcome).inc()
        serving.prompt_tokens.inc(record.num_prompt_tokens)
        serving.generation_tokens.inc(record.num_output_tokens)
        if record.outcome not in BLAMELESS:
            result = "met" if record.met(self._objectives) else "missed"
            serving.slo.labels(name, result).inc()
        if record.outcome == "completed":
            serving.successes.labels(name, record.finish_reason or "stop").inc()
            _observe_if_known(serving.latency, record.latency_s)
        _observe_if_known(serving.ttft, record.ttft_s)
        _observe_if_known(serving.tpot, record.tpot_s)
        _observe_if_known(serving.longest_gap, record.max_gap_s)

    def observe_token_gap(self, seconds: float) -> None:
        """Count one time between two tokens of a request."""
        self.times.add_gap(seconds)
        self._serving.token_gap.observe(seconds)
        self._serving.old_token_gap.observe(seconds)

    def observe_step(self, load: StepLoad, seconds: float) -> None:
        """Count one serving step."""
        self.times.add("serve", seconds)
        self._serve_seconds.inc(seconds)
        self._prefill_tokens.inc(load.num_prefill_tokens)
        self._decode_tokens.inc(load.num_decode_tokens)

    def observe_quantum(
        self, kind: str, seconds: float, work: Literal["train", "evaluate"] = "train"
    ) -> None:
        """Count one quantum of training or of held-out evaluation."""
        self.times.add(work, seconds)
        self.times.add_quantum(kind, seconds)
        self._learning.quantum_seconds.labels(kind).observe(seconds)
        self._learning.loop_seconds.labels(work).inc(seconds)

    def observe_idle(self, seconds: float) -> None:
        """Count time in which the loop had nothing to do."""
        self.times.add("idle", seconds)
        self._idle_seconds.inc(seconds)

    def set_queue(self, num_running: int, num_waiting: int) -> None:
        """Show how many requests run and wait."""
        self._serving.running.set(num_running)
        self._serving.waiting.set(num_waiting)

    def set_cache_usage(self, num_used_blocks: int, num_blocks: int) -> None:
        """Show how full the KV cache is; raises ``ZeroDivisionError`` without any block."""
        share = num_used_blocks / num_blocks
        self._serving.cache_usage.set(share)
        self._serving.old_cache_usage.set(share)
        self._serving.used_blocks.set(num_used_blocks)
        self._serving.num_blocks.set(num_blocks)

    def looked_up_prefix(self, num_queried_tokens: int, num_hit_tokens: int) -> None:
        """Count one look into the prefix cache."""
        self._serving.prefix_queries.inc(num_queried_tokens)
        self._serving.prefix_hits.inc(num_hit_tokens)

    def preempted(self, num_sequences: int = 1) -> None:
        """Count sequences that lost their KV blocks."""
        self._serving.preemptions.inc(num_sequences)

    def training_step(self, adapter: str, num_tokens: int, loss: float) -> None:
        """Count one optimizer step over ``num_tokens`` with its mean loss in nats per token."""
        self._learning.optimizer_steps.labels(adapter).inc()
        self._learning.training_tokens.labels(adapter).inc(num_tokens)
        self._learning.training_loss.labels(adapter).set(loss)

    def held_out(self, adapter: str, loss: float) -> None:
        """Show the latest held-out loss in nats per token."""
        self._learning.held_out_loss.labels(adapter).set(loss)

    def promoted(self, adapter: str, version: VersionId) -> None:
        """Count a promotion and show the version that is active now."""
        before = self._active.get(adapter)
        if before is not None and before != version:
            self._learning.active_version.remove(adapter, before)
        self._active[adapter] = version
        self._learning.active_version.labels(adapter, version).set(1)
        self._learning.promotions.labels(adapter).inc()

    def unloaded(self, adapter: str) -> None:
        """Show no active version of an adapter any more."""
        if (before := self._active.pop(adapter, None)) is not None:
            self._learning.active_version.remove(adapter, before)

    def render(self) -> bytes:
        """Return everything in Prometheus' text format (``CONTENT_TYPE``)."""
        return generate_latest(self._registry)


def _observe_if_known(histogram: Histogram, seconds: float | None) -> None:
    if seconds is not None:
        histogram.observe(seconds)
