"""Real processes are killed in the midst of rounds: the rounds go on, with one truth everywhere."""

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from factories.checkpoints import tiny_checkpoint
from factories.round_cluster import ADAPTER, Cluster, wait_until

STAGES = ("training", "aggregating", "gating", "promoting", "done")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def cluster(tmp_path, checkpoint):
    with closing(Cluster(tmp_path, checkpoint)) as cluster:
        cluster.wait_ready()
        yield cluster


def kill_while_it_trains(cluster, name):
    """Kill a replica in the midst of a round; return the round, its end, and the killed pid."""
    for _ in range(4):
        number = wait_until(
            lambda: cluster.status(cluster.latest()) == "training" and cluster.latest()
        )
        killed = wait_until(lambda: cluster.replica_pids.get(name))
        os.kill(killed, signal.SIGKILL)
        status, outcomes = cluster.await_end(number)
        if outcomes[name] != "reported":
            return number, status, outcomes, killed
        wait_until(lambda killed=killed: cluster.replica_pids.get(name, killed) != killed)
    raise AssertionError("each time it had reported before the kill")


def test_round_of_a_killed_replica_ends_with_the_others_and_it_catches_up(cluster):
    wait_until(cluster.promoted)
    number, status, outcomes, killed = kill_while_it_trains(cluster, "r1")
    assert status in ("done", "refused")
    assert outcomes["r0"] == "reported"
    assert outcomes["r1"] in ("dead", "late", "failed")
    wait_until(lambda: cluster.replica_pids.get("r1", killed) != killed)
    cluster.await_agreement()
    taken_part = "SELECT 1 FROM round_members WHERE round > ? AND member = 'r1' AND used_in > ?"
    wait_until(lambda: cluster.journal(taken_part, number, number))


def test_front_killed_in_each_stage_of_a_round_goes_on_with_it(cluster):
    replicas = wait_until(lambda: cluster.status(1) and cluster.replica_pids)
    for number in range(len(STAGES) - 1):
        # A stage may be over before it was seen: then the kill comes in the next one.
        wait_until(lambda number=number: cluster.status(1) in STAGES[number:], pause_s=0.001)
        killed = cluster.front_pid
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda killed=killed: cluster.front_pid != killed)
    assert cluster.await_end(1) == ("done", {"r0": "reported", "r1": "reported"})
    promotions = cluster.journal("SELECT version FROM decisions WHERE kind = 'promotion' LIMIT 2")
    maps = Path(f"/proc/{cluster.front_pid}/maps")
    assert not maps.exists() or "libtorch" not in maps.read_text()  # whatever it did
    assert promotions[0] == (f"{ADAPTER}@1",)
    assert promotions.count((f"{ADAPTER}@1",)) == 1
    assert cluster.replica_pids == replicas
    cluster.await_agreement()
    found = cluster.digests()
    for version in {version for version, _ in found}:
        assert len({digest for (name, _), digest in found.items() if name == version}) == 1
