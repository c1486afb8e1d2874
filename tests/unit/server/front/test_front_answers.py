"""Answers that come as a whole, and requests that get none."""

import asyncio
import json

from collm.cluster.routing_config import RouterConfig
from factories.front_server import running_front
from factories.snapshots import make_snapshot

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


async def answer(line):
    await line.whole(b'{"text":"ok"}')


async def die_within_body(line):
    await line.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
    line.die()


async def die(line):
    line.die()


def saying(status, message):
    async def script(line):
        await line.whole(json.dumps({"error": {"message": message}}).encode(), status=status)

    return script


async def post(front, body=BODY):
    return await front.http.post("/v1/chat/completions", json=body)


def run(scripts, check, **options):
    async def main():
        async with running_front(scripts, **options) as front:
            await check(front)

    asyncio.run(main())


def test_a_whole_answer_that_breaks_off_is_asked_for_again_elsewhere():
    async def check(front):
        reply = await post(front)
        assert (reply.status_code, reply.json()) == (200, {"text": "ok"})
        assert reply.headers["x-collm-replica"] == "r1"

    run({"r0": die_within_body, "r1": answer}, check)


def test_what_a_replica_says_against_a_request_is_passed_on_without_a_retry():
    async def check(front):
        reply = await post(front)
        assert (reply.status_code, reply.json()["error"]["message"]) == (400, "bad field")
        assert front.upstreams["r1"].seen == []

    run({"r0": saying(400, "bad field"), "r1": answer}, check)


def test_a_body_that_makes_no_sense_is_left_to_a_replica_to_refuse():
    async def check(front):
        for content in (b"{", b"[]", b'{"model": 5}', b"\xff", b"[" * 100_000):
            reply = await front.http.post("/v1/chat/completions", content=content)
            assert reply.json()["error"]["message"] == "bad"
            assert front.upstreams["r0"].seen[-1].body == content

    run({"r0": saying(400, "bad")}, check)


def test_when_all_are_busy_the_client_hears_so_in_the_last_ones_words():
    async def check(front):
        reply = await post(front)
        assert (reply.status_code, reply.json()["error"]["message"]) == (429, "full")
        assert reply.headers["x-collm-replica"] == "r1"

    run({"r0": saying(503, "stopping"), "r1": saying(429, "full")}, check)


def test_a_request_that_kills_replicas_does_not_meet_all_of_them():
    async def check(front):
        reply = await post(front)
        assert reply.status_code == 503
        message, upstreams = reply.json()["error"]["message"], front.upstreams
        met = {name for name, upstream in upstreams.items() if upstream.seen}
        assert len(met) == 3
        assert all((name in message) == (name in met) for name in upstreams)
        assert reply.headers["retry-after"]

    run(dict.fromkeys(("r0", "r1", "r2", "r3"), die), check)


def test_without_a_live_replica_the_answer_is_503():
    async def check(front):
        await front.lose("r0")
        reply = await post(front)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
        assert "No replica can answer now" in reply.json()["error"]["message"]

    run({"r0": answer}, check)


def test_a_name_that_only_a_lost_replica_served_is_not_unknown_until_it_is_back():
    states = {"r0": make_snapshot("r0", names=("tiny", "own")), "r1": make_snapshot("r1")}
    scripts = {"r0": answer, "r1": saying(404, "unknown")}

    async def check(front):
        assert (await post(front, BODY | {"model": "own"})).headers["x-collm-replica"] == "r0"
        await front.lose("r0")
        front.unlist("r0")
        for model, status in (("own", 503), ("other", 404), ("tiny", 404)):
            reply = await post(front, BODY | {"model": model})
            assert reply.status_code == status
        reply = await post(front, BODY | {"model": "own"})
        assert "at the replica 'r0'" in reply.json()["error"]["message"]
        assert reply.headers["retry-after"]
        front.states.silent.clear()
        front.front.registry.adopt([front.upstreams["r0"].endpoint])
        await front.front.registry.refresh()
        assert (await post(front, BODY | {"model": "own"})).status_code == 200

    run(scripts, check, states=states)


def test_a_lost_replica_is_asked_patiently_for_a_name_that_it_alone_served():
    states = {"r0": make_snapshot("r0", names=("tiny", "own")), "r1": make_snapshot("r1")}

    async def check(front):
        await front.lose("r0")
        front.states.silent.clear()
        reply = await post(front, BODY | {"model": "own"})
        assert (reply.status_code, reply.headers["x-collm-replica"]) == (200, "r0")

    run({"r0": answer, "r1": saying(404, "unknown")}, check, states=states)


def test_a_replica_that_is_merely_silent_answers_when_no_other_is_left():
    async def check(front):
        await front.lose("r0")
        await front.lose("r1")
        front.states.silent.discard("r1")
        reply = await post(front)
        assert (reply.status_code, reply.headers["x-collm-replica"]) == (200, "r1")

    run({"r0": answer, "r1": answer}, check)


def test_a_silent_replica_is_the_last_resort_of_a_request_that_others_failed():
    async def check(front):
        await front.lose("r1")
        front.states.silent.clear()
        reply = await post(front)
        assert (reply.status_code, reply.headers["x-collm-replica"]) == (200, "r1")

    run({"r0": die, "r1": answer}, check)


def test_a_request_that_would_be_late_is_turned_away_when_the_operator_wants_that():
    late = {"r0": make_snapshot("r0", queued_prefill_tokens=50_000)}

    async def check(front):
        reply = await post(front)
        assert reply.status_code == 429
        assert reply.json()["error"]["type"] == "rate_limit_error"
        assert int(reply.headers["retry-after"]) > 1
        assert front.upstreams["r0"].seen == []

    run({"r0": answer}, check, states=late, router=RouterConfig(rejects_late=True))


def test_a_body_over_the_limit_is_refused_at_the_front():
    async def check(front):
        reply = await post(front, {**BODY, "user": "x" * 2000})
        assert reply.status_code == 413
        assert front.upstreams["r0"].seen == []

    run({"r0": answer}, check, max_body_bytes=1000)


def test_headers_pass_but_for_those_of_the_connection():
    async def check(front):
        await front.http.post(
            "/v1/completions", json=BODY, headers={"authorization": "Bearer x", "te": "trailers"}
        )
        (seen,) = front.upstreams["r0"].seen
        assert seen.headers["authorization"] == "Bearer x"
        assert seen.headers["content-type"] == "application/json"
        assert seen.headers["host"] == "replica"
        assert not {"te", "connection", "accept-encoding"} & seen.headers.keys()

    run({"r0": answer}, check)


def test_the_front_documents_its_routes():
    async def check(front):
        paths = (await front.http.get("/openapi.json")).json()["paths"]
        assert {"/v1/chat/completions", "/v1/files", "/adapters", "/cluster"} <= paths.keys()

    run({"r0": answer}, check)
