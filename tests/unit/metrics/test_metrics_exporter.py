from dataclasses import dataclass, replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from collm.gate.trial import Verdict
from collm.metrics.exporter import ReplicaMetrics
from collm.metrics.records import RequestRecord
from collm.types import BASE, StepLoad, VersionId


@dataclass(frozen=True)
class Targets:
    """Any object with these two fields is a set of objectives."""

    ttft_s: float = 0.8
    tpot_s: float = 0.1


class Wall:
    """A wall clock that a test sets."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def metrics(wall) -> ReplicaMetrics:
    return ReplicaMetrics("tiny", Targets(ttft_s=0.8, tpot_s=0.1), wall_s=wall)


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
    metrics.observe_step(StepLoad(num_decode_tokens=3, num_prefill_tokens=5), 0.25, 0.6)
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
    assert value(metrics, "collm_steps_total", model_name="tiny") == 1


def test_only_the_latest_promotion_is_shown_as_active(metrics):
    metrics.promoted("clinc", VersionId("clinc@1"), "learned")
    metrics.promoted("clinc", VersionId("clinc@2"), "learned")
    shown = [labels for name, labels in read(metrics) if name == "collm_active_version_info"]
    assert shown == [frozenset({("adapter", "clinc"), ("version", "clinc@2")})]
    assert value(metrics, "collm_promotions_total", adapter="clinc", origin="learned") == 2


def test_training_progress_is_kept_per_adapter(metrics):
    metrics.training_step("clinc", 100, 2.5)
    metrics.training_step("clinc", 50, 1.5)
    metrics.training_step("snips", 10, 3.0)
    metrics.measured("clinc", 1.75, 0.5)
    metrics.measured_active("clinc", 2.0, 0.25)
    assert value(metrics, "collm_training_tokens_total", adapter="clinc") == 150
    assert value(metrics, "collm_optimizer_steps_total", adapter="clinc") == 2
    assert value(metrics, "collm_training_loss", adapter="clinc") == 1.5
    assert value(metrics, "collm_training_loss", adapter="snips") == 3.0
    assert value(metrics, "collm_held_out_loss", adapter="clinc") == 1.75
    labels = {"adapter": "clinc", "version": "base"}
    assert value(metrics, "collm_active_held_out_loss", **labels) == 2.0
    assert value(metrics, "collm_held_out_exact_match_ratio", adapter="clinc") == 0.5
    assert value(metrics, "collm_active_exact_match_ratio", **labels) == 0.25


def test_without_short_answers_no_share_of_them_is_exported(metrics):
    metrics.measured("clinc", 1.75, None)
    metrics.measured_active("clinc", 2.0, None)
    assert not [name for name, _ in read(metrics) if "exact_match" in name]


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


def test_a_completed_request_is_split_into_queue_prefill_and_decode(metrics):
    metrics.observe_request(replace(COMPLETED, admitted_at_s=1.125))
    name = {"model_name": "tiny"}
    times = {
        part: value(metrics, f"vllm:request_{part}_time_seconds_sum", **name)
        for part in ("queue", "prefill", "decode", "inference")
    }
    assert times == pytest.approx(
        {"queue": 0.125, "prefill": 0.375, "decode": 0.24, "inference": 0.615}
    )
    assert value(metrics, "vllm:request_prompt_tokens_sum", **name) == 20
    assert value(metrics, "vllm:request_generation_tokens_sum", **name) == 4


def test_a_request_that_was_never_admitted_has_no_times(metrics):
    metrics.observe_request(REJECTED)
    assert value(metrics, "vllm:request_queue_time_seconds_count", model_name="tiny") == 0


def test_adapters_asked_for_are_one_series_whatever_their_combination(metrics, wall):
    metrics.set_adapters(["b", "a"], [], 4)
    wall.now_s = 1_001.0
    metrics.set_adapters(["a"], ["c"], 4)
    shown = {key: at for key, at in read(metrics).items() if key[0] == "vllm:lora_requests_info"}
    labels = {"max_lora": "4", "running_lora_adapters": "a", "waiting_lora_adapters": "c"}
    labels["model_name"] = "tiny"
    assert shown == {("vllm:lora_requests_info", frozenset(labels.items())): 1_001.0}


def test_versions_come_and_go_and_leave_no_series_behind(metrics):
    metrics.measured_active("clinc", 3.0, 0.0)
    metrics.promoted("clinc", VersionId("clinc@1"), "learned")
    metrics.measured_active("clinc", 2.0, 0.5)
    before = len(read(metrics))
    for number in range(2, 500):
        metrics.promoted("clinc", VersionId(f"clinc@{number}"), "learned")
        metrics.measured_active("clinc", 1.5, 0.5)
    assert len(read(metrics)) == before
    labels = {"adapter": "clinc", "version": "clinc@499"}
    assert value(metrics, "collm_active_held_out_loss", **labels) == 1.5


def test_a_rollback_to_the_base_shows_no_version(metrics):
    metrics.promoted("clinc", VersionId("clinc@1"), "brought")
    metrics.rolled_back("clinc", BASE, "regression")
    assert value(metrics, "collm_rollbacks_total", adapter="clinc", cause="regression") == 1
    assert not any(name == "collm_active_version_info" for name, _ in read(metrics))


def test_what_is_taken_up_at_a_restart_is_no_promotion(metrics):
    metrics.serves("clinc", VersionId("clinc@1"))
    labels = {"adapter": "clinc", "version": "clinc@1"}
    assert value(metrics, "collm_active_version_info", **labels) == 1
    assert not any(name == "collm_promotions_total" for name, _ in read(metrics))


def test_a_checkpoint_is_dated_while_its_job_runs(metrics, wall):
    name, adapter = "collm_checkpoint_timestamp_seconds", {"adapter": "clinc"}
    metrics.job_began("clinc")
    assert value(metrics, name, **adapter) == 1_000.0
    wall.now_s = 1_030.0
    metrics.checkpoint_saved("clinc")
    assert value(metrics, name, **adapter) == 1_030.0
    metrics.job_ended("clinc", "succeeded")
    metrics.checkpoint_saved("clinc")  # by the writer, which lags behind
    assert not any(shown == name for shown, _ in read(metrics))
    assert value(metrics, "collm_jobs_ended_total", status="succeeded") == 1


def test_idle_time_that_training_was_kept_from_is_counted_apart(metrics):
    metrics.observe_idle(1.0)
    metrics.observe_idle(0.5, is_held_back=True)
    assert value(metrics, "collm_loop_seconds_total", work="idle") == 1.5
    assert value(metrics, "collm_training_held_back_seconds_total") == 0.5


def test_verdicts_are_counted_with_the_samples_behind_them(metrics):
    metrics.judged("clinc", Verdict.NOT_SHOWN, 40)
    metrics.judged("clinc", Verdict.BETTER, 24)
    labels = {"adapter": "clinc", "verdict": "not_shown"}
    assert value(metrics, "collm_gate_decisions_total", **labels) == 1
    assert value(metrics, "collm_gate_samples_total", adapter="clinc") == 64


def test_credit_is_read_when_it_is_looked_at(metrics):
    share = [0.2]
    metrics.show_credit(lambda: share[0])
    share[0] = 0.1
    assert value(metrics, "collm_training_credit_ratio") == 0.1


def test_an_objective_is_a_bucket_bound(metrics):
    bounds = {labels for name, labels in read(metrics) if name.endswith("token_seconds_bucket")}
    assert {"0.8", "0.1"} <= {dict(labels)["le"] for labels in bounds}
