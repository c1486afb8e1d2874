"""Models, health, metrics and the cluster's state, as the front shows them."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from collm.errors import UnknownObjectError
from collm.server.front.metrics import merge_metrics
from factories.front_server import running_front


def replica(*names):
    async def script(line):
        if line.seen.target == "/metrics":
            await line.whole(b"# HELP a_total A.\n# TYPE a_total counter\na_total 1.0\n")
        else:
            data = [{"id": name, "object": "model", "version": "base"} for name in names]
            await line.whole(json.dumps({"object": "list", "data": data}).encode())

    return script


def run(check):
    async def main():
        scripts = {"r0": replica("tiny", "a"), "r1": replica("tiny", "b@1")}
        async with running_front(scripts) as front:
            await check(front)

    asyncio.run(main())


def test_models_are_the_union_and_say_who_serves_them():
    async def check(front):
        rows = (await front.http.get("/v1/models")).json()["data"]
        assert [(row["id"], row["replicas"]) for row in rows] == [
            ("tiny", ["r0", "r1"]),
            ("a", ["r0"]),
            ("b@1", ["r1"]),
        ]
        assert (await front.http.get("/v1/models/b@1")).json()["replicas"] == ["r1"]
        missing = await front.http.get("/v1/models/c")
        assert missing.status_code == 404
        assert "being served: tiny, a, b@1" in missing.json()["error"]["message"]

    run(check)


def test_health_is_good_while_one_replica_lives():
    async def check(front):
        reply = await front.http.get("/health")
        assert (reply.status_code, reply.json()["status"]) == (200, "ok")
        await front.lose("r0")
        reply = await front.http.get("/health")
        assert (reply.status_code, reply.json()["status"]) == (200, "degraded")
        assert reply.json()["replicas"] == {"r0": "dead", "r1": "ok"}
        front.unlist("r0")  # it is being started again
        reply = await front.http.get("/health")
        assert (reply.json()["status"], reply.json()["replicas"]["r0"]) == ("degraded", "dead")
        assert 'collm_front_replicas{state="dead"} 1.0' in (await front.http.get("/metrics")).text
        await front.lose("r1")
        reply = await front.http.get("/health")
        assert (reply.status_code, reply.json()["status"]) == (503, "unavailable")

    run(check)


def test_metrics_hold_every_replicas_labelled_with_its_name():
    async def check(front):
        text = (await front.http.get("/metrics")).text
        assert 'collm_front_replicas{state="alive"} 2.0' in text
        assert text.count("# TYPE a_total counter") == 1
        assert 'a_total{replica="r0"} 1.0\na_total{replica="r1"} 1.0\n' in text

    run(check)


def test_labels_go_before_those_that_are_there():
    text = '# TYPE h histogram\nh_bucket{le="+Inf",m="a{b}"} 3 17\nh_count 3\n'
    labelled = merge_metrics("", [("r0", text)])
    assert labelled == (
        '# TYPE h histogram\nh_bucket{replica="r0",le="+Inf",m="a{b}"} 3 17\n'
        'h_count{replica="r0"} 3\n'
    )


def test_what_front_and_replicas_both_count_is_described_once():
    text = "# TYPE cpu counter\ncpu 1.0\n"
    merged = merge_metrics(text, [("r0", text)])
    assert merged == '# TYPE cpu counter\ncpu 1.0\ncpu{replica="r0"} 1.0\n'


def test_a_replica_that_comes_back_in_a_new_process_counts_as_restarted():
    async def check(front):
        endpoints = [upstream.endpoint for upstream in front.upstreams.values()]
        later = replace(endpoints[0], started_at_s=endpoints[0].started_at_s + 60.0)
        front.front.registry.adopt([later, endpoints[1]])
        await front.front.registry.refresh()
        text = (await front.http.get("/metrics")).text
        assert 'collm_front_replica_restarts_total{replica="r0"} 1.0' in text
        assert 'collm_front_replica_restarts_total{replica="r1"} 0.0' in text

    run(check)


def test_cluster_shows_replicas_versions_and_rounds():
    async def check(front):
        await front.lose("r1")
        shown = (await front.http.get("/cluster")).json()
        first, second = shown["replicas"]
        assert (first["id"], first["is_live"], second["is_live"]) == ("r0", True, False)
        assert first["state"]["ttft_s"] == 0.8
        assert second["state"] is None
        assert second["silent_s"] == pytest.approx(1.0)
        assert shown["adapters"] == {"clinc": {"r0": "clinc@3"}}
        assert shown["rounds"] == {}

    run(check)


def test_the_front_needs_no_torch():
    code = (
        "import sys, collm.server.front.app, collm.server.front.run\n"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class Planned:
    """Has shared something out."""

    def status(self, replica_id=None):
        if replica_id not in (None, "r0"):
            raise UnknownObjectError(f"no replica {replica_id!r}")
        return {"number": 3, "replica": replica_id}


def test_allocation_is_shown_whole_and_for_one_replica():
    async def main():
        async with running_front({"r0": replica("tiny")}, planning=Planned()) as front:
            path = "/cluster/allocation"
            assert (await front.http.get(path)).json() == {"number": 3, "replica": None}
            one = await front.http.get(path, params={"replica": "r0"})
            assert one.json()["replica"] == "r0"
            assert (await front.http.get(path, params={"replica": "r7"})).status_code == 404
            assert (await front.http.get(path, params={"site": "r0"})).status_code == 400

    asyncio.run(main())


def test_without_a_plan_the_allocation_says_how_to_get_one():
    async def check(front):
        reply = await front.http.get("/cluster/allocation")
        assert reply.status_code == 404
        assert "cluster.planning.policy" in reply.json()["error"]["message"]

    run(check)
