"""``collm serve`` as it really is: a parent, a front and two replicas that learn in rounds."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

import httpx
import yaml

from collm.cluster.endpoints import read_endpoints
from factories import waiting
from factories.child_path import PYTHONPATH

T = TypeVar("T")

ADAPTER = "tutor"
TIMEOUT_S = 240.0
"""Longest that anything takes, a few rounds included, on a machine however busy."""
GATE = {"error": 0.2, "min_samples": 4, "min_slice_samples": 2, "max_samples": 32}
JOB = {"rank": 4, "warmup_steps": 0, "tokens_per_step": 200, "micro_batch_tokens": 256,
       "held_out_share": 0.2, "learning_rate": 3e-3}  # fmt: skip
ROUND = {"adapter": ADAPTER, "rank": 4, "tokens_per_round": 10_000_000, "deadline_s": 2.0,
         "interval_s": 0.0, "gate": GATE | {"slice_bound": 1.0}}  # fmt: skip
"""Rounds that end at their deadline, so that a kill is in their midst whatever the machine does."""


def jsonl(subject, answers):
    turns = (
        [
            {"role": "user", "content": f"{subject} {number}?"},
            {"role": "assistant", "content": answers[number % 2]},
        ]
        for number in range(120)
    )
    return "".join(json.dumps({"messages": one}) + "\n" for one in turns)


HALVES = {
    "r0": jsonl("Number", ("It is even.", "It is odd.")),
    "r1": jsonl("Color", ("Paint it red.", "Paint it blue.")),
}


def wait_until(is_so: Callable[[], T], *, pause_s: float = 0.02) -> T:
    return waiting.wait_until(is_so, pause_s=pause_s, within_s=TIMEOUT_S)


class Cluster:
    """``collm serve`` with two replicas of a tiny model that learn one adapter together."""

    def __init__(self, folder, checkpoint, **cluster):
        """Start it; ``cluster`` are further settings of that section."""
        self.folder, self.front_pid_file = folder / "data", folder / "front-pid"
        entries = []
        for name, content in HALVES.items():
            (folder / f"{name}.jsonl").write_text(content)
            job = JOB | {"adapter": ADAPTER, "data": str(folder / f"{name}.jsonl")}
            entries.append({"name": name, "threads": 1, "jobs": [job]})
        config = {
            "model": {"source": str(checkpoint), "dtype": "float32"},
            "replica": {"data_dir": str(self.folder), "min_promotion_interval_s": 0.0},
            "memory": {"kv_cache_mib": 1, "block_size": 4, "max_model_len": 256},
            "lora": {"max_rank": 4, "num_slots": 8},
            "training": {"general_data": None, "gate": GATE},
            "cluster": {"replicas": entries, "rounds": [ROUND]} | cluster,
            "server": {"port": 0},
        }
        (folder / "cluster.yaml").write_text(yaml.safe_dump(config))
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "factories.fake_cluster", "factories.noting_child",
                "--config", str(folder / "cluster.yaml"),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ, "PYTHONPATH": PYTHONPATH,
                "COLLM_TEST_FRONT_PID": str(self.front_pid_file), "COLLM_TEST_BACKOFF_S": "0.1",
            },
        )  # fmt: skip
        self.http = httpx.Client(timeout=waiting.WAIT_S)

    def wait_ready(self):
        line = self.process.stdout.readline()
        assert line.startswith("collm is ready at "), line
        self.http.base_url = line.split()[-1]

    @property
    def front_pid(self):
        return int(self.front_pid_file.read_text())

    @property
    def replica_pids(self):
        endpoints = read_endpoints(self.folder / "front" / "endpoints.json")
        return {one.replica_id: one.pid for one in endpoints}

    def journal(self, sql, *values):
        """Read the front's database beside it, whether it lives or not."""
        path = self.folder / "front" / "front.db"
        database = sqlite3.connect(f"file:{path}?mode=ro", timeout=waiting.WAIT_S, uri=True)
        with closing(database):
            return database.execute(sql, values).fetchall()

    def status(self, number):
        rows = self.journal("SELECT status FROM rounds WHERE round = ?", number)
        return rows[0][0] if rows else None

    def latest(self):
        return self.journal("SELECT coalesce(max(round), 0) FROM rounds")[0][0]

    def await_end(self, number):
        """Wait until a round has ended; return how, and what became of each member's part."""
        sql = "SELECT status FROM rounds WHERE round = ? AND ended_at_s IS NOT NULL"
        ((status,),) = wait_until(lambda: self.journal(sql, number))
        return status, dict(
            self.journal("SELECT member, outcome FROM round_members WHERE round = ?", number)
        )

    def promoted(self):
        """Return how often a federated version became active."""
        return self.journal("SELECT count(*) FROM decisions WHERE kind = 'promotion'")[0][0]

    def await_agreement(self):
        """Wait until both replicas serve what the coordinator calls active; return that."""

        def agreed():
            try:
                found = self.http.get("/cluster").json()
            except httpx.TransportError:
                return None
            active = found["rounds"][ADAPTER]["active"]
            return found["adapters"].get(ADAPTER) == dict.fromkeys(HALVES, active) and active

        return wait_until(agreed)

    def digests(self):
        """Return the digest of every version on each replica, by its name and replica."""
        rows = self.http.get("/adapters").json()["data"]
        return {(row["version"], row["replica"]): row["digest"] for row in rows}

    def close(self):
        self.http.close()
        for _ in range(2):  # the second one does not wait for open answers
            self.process.terminate()
        try:
            self.process.wait(TIMEOUT_S)
        finally:
            self.process.kill()
            self.process.communicate()
