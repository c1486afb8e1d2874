"""A parent, its front and two replicas, each a process; only the replicas' models are fakes."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import httpx
import pytest

from collm.cluster.endpoints import read_endpoints
from factories.child_path import PYTHONPATH
from factories.fake_replica import BASE_MODEL
from factories.waiting import WAIT_S, wait_until

BODY = {"model": BASE_MODEL, "messages": [{"role": "user", "content": "hi"}]}
HELD = 7
"""Seed of a request that stops after its first letter."""
NOT_BEGUN = 8
"""Seed of a request that stops before it."""


class Cluster:
    def __init__(self, folder):
        self.folder = folder / "data"
        self.front_pid = folder / "front-pid"
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "factories.fake_cluster", "factories.cluster_child",
                "--replicas", "2", "--port", "0", "--set", f"replica.data_dir={self.folder}",
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ, "PYTHONPATH": PYTHONPATH,
                "COLLM_TEST_FRONT_PID": str(self.front_pid),
            },
        )  # fmt: skip
        self.http = httpx.Client(timeout=WAIT_S)

    def wait_ready(self):
        line = self.process.stdout.readline()
        assert line.startswith("collm is ready at "), line
        self.http.base_url = line.split()[-1]
        wait_until(lambda: self.num_live == 2)

    @property
    def num_live(self):
        answer = self.http.get("/cluster")
        return answer.status_code == 200 and sum(
            replica["is_live"] for replica in answer.json()["replicas"]
        )

    @property
    def replicas(self):
        return {
            item.replica_id: item for item in read_endpoints(self.folder / "front/endpoints.json")
        }

    def chat(self):
        answer = self.http.post("/v1/chat/completions", json=BODY)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == "Hello"
        return answer.headers["x-collm-replica"]

    def num_open(self, replica_id):
        rows = self.http.get("/cluster").json()["replicas"]
        return next(row["num_open"] for row in rows if row["id"] == replica_id)

    @contextmanager
    def held_stream(self):
        """Yield the replica and the remaining lines of a stream that has begun."""
        body = {**BODY, "stream": True, "seed": HELD}
        with self.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            while '"content":"H"' not in next(lines):
                pass
            yield answer.headers["x-collm-replica"], lines

    def close(self):
        self.http.close()
        self.process.terminate()
        self.process.terminate()
        try:
            self.process.wait(WAIT_S)
        finally:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def cluster(tmp_path):
    with closing(Cluster(tmp_path)) as cluster:
        cluster.wait_ready()
        yield cluster


def test_sigterm_lets_an_open_stream_end_and_then_ends_everything(cluster):
    pids = [endpoint.pid for endpoint in cluster.replicas.values()]
    with cluster.held_stream() as (replica_id, lines):
        cluster.process.send_signal(signal.SIGTERM)
        httpx.post(cluster.replicas[replica_id].url + "/test/release", timeout=WAIT_S)
        assert "data: [DONE]" in list(lines)
    assert cluster.process.wait(WAIT_S) == 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_killed_replica_ends_its_stream_with_an_error_and_nothing_else(cluster):
    wait_until(lambda: cluster.num_live == 2)
    with cluster.held_stream() as (replica_id, lines):
        killed = cluster.replicas[replica_id].pid
        os.kill(killed, signal.SIGKILL)
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
        assert "error" in json.loads(events[-1])
    for _ in range(10):
        assert cluster.chat() != replica_id or cluster.replicas[replica_id].pid != killed
    wait_until(
        lambda: replica_id in cluster.replicas and cluster.replicas[replica_id].pid != killed
    )


def test_requests_without_a_token_survive_the_kill_of_their_replica(cluster):
    killed, other = sorted(cluster.replicas)
    httpx.post(cluster.replicas[other].url + "/test/release", timeout=WAIT_S)
    body = {**BODY, "stream": True, "seed": NOT_BEGUN}

    def ask():
        return cluster.http.post("/v1/chat/completions", json=body)

    with ThreadPoolExecutor(8) as threads:
        asking = [threads.submit(ask) for _ in range(8)]

        def num_held():
            """Return how many are not answered, once all have come to the other or are held."""
            num_open, num_answered = cluster.num_open(killed), sum(one.done() for one in asking)
            return num_open if num_open + num_answered == len(asking) else 0

        wait_until(num_held)
        os.kill(cluster.replicas[killed].pid, signal.SIGKILL)
        answers = [one.result() for one in asking]
    assert {answer.headers["x-collm-replica"] for answer in answers} == {other}
    assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)


def test_killed_front_is_followed_by_one_that_knows_the_replicas(cluster):
    before = cluster.replicas
    os.kill(int(cluster.front_pid.read_text()), signal.SIGKILL)

    def answers():
        try:
            return cluster.http.post("/v1/chat/completions", json=BODY).status_code == 200
        except httpx.TransportError:
            return False

    wait_until(answers)
    assert cluster.replicas == before
