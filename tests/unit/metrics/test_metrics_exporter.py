from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from collm.metrics.exporter import ReplicaMetrics
from collm.metrics.records import RequestRecord
from collm.types import StepLoad, VersionId


@dataclass(frozen=True)
class Targets:
    """Any object with these two fields is a set of objectives."""

    ttft_s: float = 0.8
    tpot_s: float = 0.1


DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture
def metrics() -> ReplicaMetrics:
    return ReplicaMetrics("tiny", Targets(ttft_s=0.8, tpot_s=0.1))


def read(metrics: ReplicaMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def value(metrics: ReplicaMetrics, name: str, **labels: str) -> float:
    return read(metrics)[name, frozenset(labels.items())]


COMPLETED = RequestRecord(
    request_id="r",
    model="clinc",
    arrived_at_s=1.0,
    first_token_at_s=1.5,
    last_token_at_s=1.74,
    num_prompt_tokens=20,
    num_output_tokens=4,
    max_gap_s=0.2,
    finish_reason="stop",
    outcome="completed",
)
REJECTED = RequestRecord(request_id="q", model="clinc", arrived_at_s=1.0, outcome="rejected")


def test_request_is_counted_under_vllm_names_and_ours(metrics):
    metrics.observe_request(COMPLETED)
    metrics.observe_request(REJECTED)
    name = {"model_name": "tiny"}
    assert value(metrics, "vllm:request_success_total", finished_reason="stop", **name) == 1
    assert value(metrics, "vllm:prompt_tokens_total", **name) == 20
    assert value(metrics, "vllm:generation_tokens_total", **name) == 4
    assert value(metrics, "vllm:time_to_first_token_seconds_sum", **name) == 0.5
    assert value(metrics, "vllm:time_to_first_token_seconds_bucket", le="0.4", **name) == 0
    assert value(metrics, "vllm:time_to_first_token_seconds_bucket", le="0.8", **name) == 1
    assert value(metrics, "collm_requests_total", outcome="completed", **name) == 1
    assert value(metrics, "collm_requests_total", outcome="rejected", **name) == 1
    assert value(metrics, "collm_slo_requests_total", result="met", **name) == 1
    assert value(metrics, "collm_slo_requests_total", result="missed", **name) == 1


def test_loop_time_is_split_by_kind_of_work(metrics):
    metrics.observe_step(StepLoad(num_decode_tokens=3, num_prefill_tokens=5), 0.25)
    metrics.observe_quantum("layer_forward", 0.5)
    metrics.observe_quantum("held_out", 0.125, work="evaluate")
    metrics.observe_idle(1.0)
    seconds = {
        work: value(metrics, "collm_loop_seconds_total", work=work)
        for work in ("serve", "train", "evaluate", "idle")
    }
    assert seconds == {"serve": 0.25, "train": 0.5, "evaluate": 0.125, "idle": 1.0}
    assert value(metrics, "collm_quantum_seconds_count", kind="layer_forward") == 1
    assert value(metrics, "collm_step_tokens_total", phase="decode", model_name="tiny") == 3


def test_only_the_latest_promotion_is_shown_as_active(metrics):
    metrics.promoted("clinc", VersionId("clinc@1"))
    metrics.promoted("clinc", VersionId("clinc@2"))
    shown = [labels for name, labels in read(metrics) if name == "collm_active_version_info"]
    assert shown == [frozenset({("adapter", "clinc"), ("version", "clinc@2")})]
    assert value(metrics, "collm_promotions_total", adapter="clinc") == 2


def test_training_progress_is_kept_per_adapter(metrics):
    metrics.training_step("clinc", 100, 2.5)
    metrics.training_step("clinc", 50, 1.5)
    metrics.training_step("snips", 10, 3.0)
    metrics.held_out("clinc", 1.75)
    assert value(metrics, "collm_training_tokens_total", adapter="clinc") == 150
    assert value(metrics, "collm_optimizer_steps_total", adapter="clinc") == 2
    assert value(metrics, "collm_training_loss", adapter="clinc") == 1.5
    assert value(metrics, "collm_training_loss", adapter="snips") == 3.0
    assert value(metrics, "collm_held_out_loss", adapter="clinc") == 1.75


def test_queue_and_cache_show_the_latest_state(metrics):
    metrics.set_queue(3, 2)
    metrics.set_cache_usage(25, 100)
    metrics.looked_up_prefix(64, 48)
    metrics.preempted()
    metrics.observe_token_gap(0.03)
    name = {"model_name": "tiny"}
    assert value(metrics, "vllm:num_requests_running", **name) == 3
    assert value(metrics, "vllm:num_requests_waiting", **name) == 2
    assert value(metrics, "vllm:kv_cache_usage_perc", **name) == 0.25
    assert value(metrics, "collm_kv_blocks_used", **name) == 25
    assert value(metrics, "vllm:prefix_cache_hits_total", **name) == 48
    assert value(metrics, "vllm:num_preemptions_total", **name) == 1
    assert value(metrics, "vllm:inter_token_latency_seconds_count", **name) == 1


def test_two_replicas_in_one_process_do_not_share_counters(metrics):
    other = ReplicaMetrics("tiny", Targets())
    metrics.observe_request(COMPLETED)
    assert value(other, "collm_requests_total", outcome="completed", model_name="tiny") == 0


def test_every_exported_metric_is_documented(metrics):
    documented = DOCS.read_text()
    families = text_string_to_metric_families(metrics.render().decode())
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    names = {name for name in names if not name.endswith("_created")}
    assert [name for name in sorted(names) if f"`{name}`" not in documented] == []
