"""The metrics of serving on one replica, under ``collm_…`` and under the names of vLLM.

The vLLM names are those that its dashboards, autoscalers and inference gateways read.

Source: vLLM, "Production Metrics"; Kubernetes Gateway API inference extension, "Model Server
Protocol".
"""

from prometheus_client import CollectorRegistry, Gauge, Histogram

from collm.metrics.buckets import LATENCY_BUCKETS_S, LENGTH_BUCKETS, TOKEN_BUCKETS_S
from collm.metrics.metric_set import MetricSet


class ServingMetrics(MetricSet):
    """Requests, tokens, queues and blocks; each labelled with the base model's id."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        super().__init__(registry, "model_name")
        self._model_name = model_name
        self._make_load()
        self._make_times()
        self._make_counts()

    def _make_load(self) -> None:
        self.running = self._one_gauge(
            "vllm:num_requests_running", "Sequences that hold KV blocks."
        )
        self.waiting = self._one_gauge(
            "vllm:num_requests_waiting", "Sequences that wait for admission."
        )
        self.cache_usage = self._one_gauge(
            "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1."
        )
        self.old_cache_usage = self._one_gauge(
            "vllm:gpu_cache_usage_perc", "The same under its older name, also on a CPU."
        )
        self.cache_config = self.gauge(
            "vllm:cache_config_info",
            "Always 1; the shape of the KV cache, whose blocks may be on a CPU.",
            "block_size",
            "num_gpu_blocks",
        )
        self.lora_requests = self.gauge(
            "vllm:lora_requests_info",
            "When the adapters of running and waiting requests were last looked at, in seconds "
            "since 1970; names are separated by commas.",
            "max_lora",
            "running_lora_adapters",
            "waiting_lora_adapters",
        )
        self.used_blocks = self._one_gauge("collm_kv_blocks_used", "KV blocks in use.")
        self.num_blocks = self._one_gauge("collm_kv_blocks", "KV blocks there are.")
        self.objective = self.gauge(
            "collm_slo_objective_seconds",
            "Objective for the first token (`ttft`) and for each one after it (`tpot`).",
            "objective",
        )

    def _make_times(self) -> None:
        self.ttft = self._latency(
            "vllm:time_to_first_token_seconds", "TTFT: arrival to first token, queueing included."
        )
        self.latency = self._latency(
            "vllm:e2e_request_latency_seconds", "Arrival to last token of completed requests."
        )
        self.queue_time = self._latency(
            "vllm:request_queue_time_seconds", "Arrival to first admission of completed requests."
        )
        self.prefill_time = self._latency(
            "vllm:request_prefill_time_seconds",
            "First admission to first token of completed requests.",
        )
        self.decode_time = self._latency(
            "vllm:request_decode_time_seconds", "First to last token of completed requests."
        )
        self.inference_time = self._latency(
            "vllm:request_inference_time_seconds",
            "First admission to last token of completed requests.",
        )
        self.tpot = self._token_time(
            "vllm:request_time_per_output_token_seconds",
            "TPOT: mean time per token after the first, one value per request.",
        )
        self.token_gap = self._token_time(
            "vllm:inter_token_latency_seconds", "Each single time between two tokens."
        )
        self.old_token_gap = self._token_time(
            "vllm:time_per_output_token_seconds", "The same under its older name."
        )
        self.longest_gap = self._token_time(
            "collm_longest_token_gap_seconds", "Longest time between two tokens of each request."
        )

    def _make_counts(self) -> None:
        name = self._model_name
        self.prompt_tokens = self.counter(
            "vllm:prompt_tokens_total", "Prompt tokens of requests that ended."
        ).labels(name)
        self.generation_tokens = self.counter(
            "vllm:generation_tokens_total", "Output tokens of requests that ended."
        ).labels(name)
        self.prompt_length = self._length(
            "vllm:request_prompt_tokens", "Prompt tokens of each completed request."
        )
        self.output_length = self._length(
            "vllm:request_generation_tokens", "Output tokens of each completed request."
        )
        self.preemptions = self.counter(
            "vllm:num_preemptions_total", "Sequences that lost their KV blocks to others."
        ).labels(name)
        self.prefix_queries = self.counter(
            "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."
        ).labels(name)
        self.prefix_hits = self.counter(
            "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache."
        ).labels(name)
        self.successes = self.counter(
            "vllm:request_success_total", "Completed requests.", "finished_reason"
        )
        self.outcomes = self.counter(
            "collm_requests_total", "Requests that ended, by outcome.", "outcome"
        )
        self.slo = self.counter(
            "collm_slo_requests_total",
            "Requests by whether every objective was `met` or `missed`; refused and aborted ones "
            "are left out.",
            "result",
        )
        self.mixed = self.counter(
            "collm_mixed_version_requests_total",
            "Requests whose tokens came from more than one version; any is a defect.",
        ).labels(name)
        self.steps = self.counter("collm_steps_total", "Steps that served.").labels(name)
        self.step_tokens = self.counter(
            "collm_step_tokens_total",
            "Tokens computed, as they are computed, in `prefill` and `decode`.",
            "phase",
        )

    def _one_gauge(self, name: str, text: str) -> Gauge:
        return self.gauge(name, text).labels(self._model_name)

    def _latency(self, name: str, text: str) -> Histogram:
        return self.histogram(name, text, buckets=LATENCY_BUCKETS_S).labels(self._model_name)

    def _token_time(self, name: str, text: str) -> Histogram:
        return self.histogram(name, text, buckets=TOKEN_BUCKETS_S).labels(self._model_name)

    def _length(self, name: str, text: str) -> Histogram:
        return self.histogram(name, text, buckets=LENGTH_BUCKETS).labels(self._model_name)
