"""What is exported is what is defined, and what is defined is what is documented."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from collm.cli.metrics_reference import with_reference
from collm.metrics.exporter import ReplicaMetrics
from collm.metrics.front import FrontMetrics, Outcome
from collm.metrics.metric_set import Definition
from collm.pacing.config import PacingConfig

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"
_BASE_UNITS = ("_seconds", "_tokens", "_bytes", "_ratio", "_total", "_info", "_perc")
_NUMBERS = (
    "num_requests_running", "num_requests_waiting", "collm_kv_blocks", "collm_kv_blocks_used",
    "collm_jobs", "collm_front_open_calls", "collm_front_replicas",
)  # fmt: skip
_LOSSES = ("collm_training_loss", "collm_held_out_loss", "collm_active_held_out_loss")


def replica() -> ReplicaMetrics:
    return ReplicaMetrics("tiny", PacingConfig())


def definitions() -> list[Definition]:
    exporter = replica()
    front = FrontMetrics().definitions
    return [*exporter.serving_definitions, *exporter.learning_definitions, *front]


@pytest.mark.parametrize("one", definitions(), ids=lambda one: one.name)
def test_names_follow_the_conventions_of_prometheus(one):
    assert one.name.startswith(("collm_", "vllm:"))
    assert one.name.endswith("_total") == (one.kind == "counter")
    is_number = one.name.removeprefix("vllm:") in _NUMBERS
    assert is_number or one.name in _LOSSES or one.name.endswith(_BASE_UNITS)
    assert one.text.endswith((".", "`."))
    assert all(re.fullmatch("[a-z_]+", label) for label in one.labels)


def test_names_are_defined_once():
    names = [one.name for one in definitions()]
    assert len(names) == len(set(names))


def test_everything_exported_is_defined_or_about_the_process():
    texts = replica().render().decode(), FrontMetrics().render(0, {})
    families = [family for text in texts for family in text_string_to_metric_families(text)]
    counters = {family.name + "_total" for family in families if family.type == "counter"}
    others = {family.name for family in families if family.type != "counter"}
    known = {one.name for one in definitions()}
    unknown = {name for name in counters | others if name not in known}
    # One more series of each counter tells when it began, unless the environment says no.
    created = {name for name in unknown if name.endswith("_created")}
    assert all(name.startswith("process_") for name in unknown - created)


def test_the_page_lists_what_the_code_exports():
    page = DOCS.read_text(encoding="utf-8")
    assert with_reference(page) == page, (
        "run: python -m collm.cli.metrics_reference docs/metrics.md"
    )


def samples(metrics: FrontMetrics) -> dict[str, float]:
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in metrics.render(1, {"r0": True, "r1": False}).splitlines()
        if not line.startswith("#")
    }


def test_a_replica_in_a_new_process_counts_as_restarted():
    metrics = FrontMetrics()
    for started_at_s in (10.0, 10.0, 20.0, 30.0):
        metrics.replica_answers("r0", started_at_s)
    metrics.replica_answers("r1", 11.0)
    shown = samples(metrics)
    assert shown['collm_front_replica_restarts_total{replica="r0"}'] == 2
    assert shown['collm_front_replica_restarts_total{replica="r1"}'] == 0
    assert shown['collm_front_replicas{state="dead"}'] == 1


def test_a_round_counts_with_its_members_and_its_stages():
    metrics = FrontMetrics()
    metrics.round_ended(
        "clinc",
        "done",
        members=["reported", "late", "reported"],
        stages=[("training", 20.0), ("gating", 3.0)],
        ended_at_s=1_000.0,
    )
    shown = samples(metrics)
    assert shown['collm_rounds_total{adapter="clinc",outcome="done"}'] == 1
    assert shown['collm_round_members_total{adapter="clinc",outcome="reported"}'] == 2
    assert shown['collm_round_stage_seconds_sum{adapter="clinc",stage="training"}'] == 20.0
    labels = '{adapter="clinc",outcome="done"}'
    assert shown[f"collm_round_ended_timestamp_seconds{labels}"] == 1_000.0


def test_every_outcome_is_there_before_it_happens():
    shown = samples(FrontMetrics())
    for outcome in Outcome:
        assert shown[f'collm_front_requests_total{{outcome="{outcome}"}}'] == 0
