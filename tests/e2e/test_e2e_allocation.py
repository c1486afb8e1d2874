"""The slow loop on real processes: what it allots reaches the replicas, and it can say why."""

import json
import subprocess
import sys
from contextlib import closing

import pytest

from factories.checkpoints import tiny_checkpoint
from factories.round_cluster import ADAPTER, HALVES, Cluster, wait_until

PLANNING = {
    "policy": "adaptive",
    "period_s": 2.0,
    "valid_s": 60.0,
    "max_credit_share": 0.2,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    checkpoint = tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")
    folder = tmp_path_factory.mktemp("cluster")
    with closing(Cluster(folder, checkpoint, planning=PLANNING)) as cluster:
        cluster.wait_ready()
        yield cluster


def allocation(cluster):
    answer = cluster.http.get("/cluster/allocation")
    return answer.json() if answer.status_code == 200 else None


def states(cluster):
    found = cluster.http.get("/cluster").json()["replicas"]
    return {row["id"]: row["state"] for row in found}


def ask(cluster):
    body = {
        "model": ADAPTER,
        "messages": [{"role": "user", "content": "Color 3?"}],
        "max_tokens": 4,
    }
    return cluster.http.post("/v1/chat/completions", json=body)


def bought(cluster):
    """Return the allocation if it has both replicas train."""
    found = allocation(cluster)
    grants = [one["grants"] for one in found["replicas"].values()] if found else []
    is_bought = len(grants) == 2 and all(
        grant.get(ADAPTER, {}).get("expected_tokens", 0.0) > 0.0 for grant in grants
    )
    return found if is_bought else None


def test_training_that_was_bought_reaches_both_replicas(cluster):
    first = wait_until(lambda: bought(cluster))
    for one in first["replicas"].values():
        grant = one["grants"][ADAPTER]
        assert grant["time_share"] == 1.0
        assert grant["batch_tokens"] in (100, 200, 400, 800, 1_600)
    wait_until(
        lambda: all(state["allocation"] >= first["number"] for state in states(cluster).values())
    )


def test_all_that_is_planned_with_arrives_in_snapshots(cluster):
    def has_arrived(state):
        learning = state["learning"].get(ADAPTER, {})
        done = state["totals"]["adapters"].get(ADAPTER, {})
        return (
            learning.get("evaluation") is not None
            and learning["is_joint"]
            and done.get("num_steps")
            and done["gradient"]["num_differences"]
            and done["num_met"]
            and 0.0 < done["evaluation_s"] < done["training_s"]
            and state["quality"].get(ADAPTER)
        )

    def all_have():
        assert ask(cluster).status_code == 200
        return all(has_arrived(state) for state in states(cluster).values())

    wait_until(all_have)


def test_requests_are_forecast_and_the_curve_is_used(cluster):
    def foreseen():
        ask(cluster)
        found = allocation(cluster)
        terms = found["adapters"][ADAPTER] if found else {}
        return terms.get("arrivals_per_s", 0.0) > 0.1 and terms["has_curve"]

    wait_until(foreseen)


@pytest.mark.parametrize("replica", sorted(HALVES))
def test_explain_says_why_on_the_command_line(cluster, replica):
    wait_until(lambda: bought(cluster))
    command = [sys.executable, "-m", "collm", "explain", "--url", str(cluster.http.base_url)]
    said = subprocess.run([*command, replica], capture_output=True, text=True, check=True).stdout
    assert f"{replica}, allocation" in said
    assert f"{ADAPTER}: 100% of its training time" in said
    assert "effective tokens are expected, worth" in said
    assert "price: a second of its work costs" in said
    assert "chosen:" in said
    shown = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
    assert set(json.loads(shown)["replicas"]) == set(HALVES)
