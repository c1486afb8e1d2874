"""What a client of the front sees of answers that stream, whatever happens to replicas."""

import asyncio
import json

import openai
import pytest

from collm.server import run
from collm.server.front.watching import cut_hung
from factories.front_server import running_front
from factories.scripted_upstream import Line
from factories.waiting import WAIT_S

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}
EVENTS = [b'data: {"n":1}\n\n', b'data: {"n":2}\n\n', b"data: [DONE]\n\n"]


async def stream_all(line: Line) -> None:
    await line.start_stream()
    for event in EVENTS:
        await line.chunk(event)
    await line.end_stream()


async def die_at_once(line: Line) -> None:
    line.die()


async def die_after_head(line: Line) -> None:
    await line.start_stream()
    line.die()


async def die_within_second_event(line: Line) -> None:
    await line.start_stream()
    await line.chunk(EVENTS[0] + EVENTS[1][:9])
    line.die()


async def refuse_as_busy(line: Line) -> None:
    body = {"error": {"message": "queue is full", "type": "rate_limit_error"}}
    await line.whole(json.dumps(body).encode(), status=429)


async def post(front):
    return await front.http.post("/v1/chat/completions", json=BODY)


def test_a_stream_passes_unchanged_and_says_who_answered():
    async def main():
        async with running_front({"r0": stream_all, "r1": stream_all}) as front:
            reply = await post(front)
            assert reply.content == b"".join(EVENTS)
            assert reply.headers["x-collm-replica"] == "r0"
            assert reply.headers["x-collm-version"] == "base"
            assert reply.headers["content-type"].startswith("text/event-stream")
            (seen,) = front.upstreams["r0"].seen
            assert (seen.method, seen.target) == ("POST", "/v1/chat/completions")
            assert json.loads(seen.body) == BODY

    asyncio.run(main())


def test_each_event_leaves_as_soon_as_it_is_there():
    async def main():
        go_on = asyncio.Event()

        async def wait_between(line):
            await line.start_stream()
            await line.chunk(EVENTS[0])
            await go_on.wait()
            await line.chunk(EVENTS[2])
            await line.end_stream()

        async with (
            running_front({"r0": wait_between}) as front,
            front.http.stream("POST", "/v1/chat/completions", json=BODY) as reply,
        ):
            pieces = reply.aiter_raw()
            assert await anext(pieces) == EVENTS[0]
            go_on.set()
            assert b"".join([piece async for piece in pieces]) == EVENTS[2]

    asyncio.run(main())


@pytest.mark.parametrize("fail", [die_at_once, die_after_head, refuse_as_busy])
def test_a_request_whose_replica_fails_before_its_first_byte_is_answered_by_another(fail):
    async def main():
        async with running_front({"r0": fail, "r1": stream_all}) as front:
            reply = await post(front)
            assert reply.content == b"".join(EVENTS)
            assert reply.headers["x-collm-replica"] == "r1"
            metrics = (await front.http.get("/metrics")).text
            assert 'collm_front_retries_total{failed_at="r0"} 1.0' in metrics

    asyncio.run(main())


def test_a_replica_that_cannot_be_connected_to_gets_nothing_more_until_it_answers():
    async def main():
        async with running_front({"r0": stream_all, "r1": stream_all}) as front:
            front.upstreams["r0"].refuse()
            assert (await post(front)).headers["x-collm-replica"] == "r1"
            assert set(front.front.registry.table) == {"r1"}

    asyncio.run(main())


def test_a_stream_whose_replica_dies_ends_with_an_error_event_and_no_half_event():
    async def main():
        async with running_front({"r0": die_within_second_event, "r1": stream_all}) as front:
            reply = await post(front)
            first, last, rest = reply.content.split(b"\n\n")
            assert (first + b"\n\n", rest) == (EVENTS[0], b"")
            error = json.loads(last.removeprefix(b"data: "))["error"]
            assert error["code"] == "replica_lost"
            assert "'r0' was lost while it answered" in error["message"]
            assert front.upstreams["r1"].seen == []

    asyncio.run(main())


def test_openai_client_raises_what_a_broken_stream_says():
    async def main():
        chunk = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "tiny",
            "choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": None}],
        }

        async def die_after_one(line):
            await line.start_stream()
            await line.chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            line.die()

        async with running_front({"r0": die_after_one}) as front:
            client = openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="x", max_retries=0)
            async with client:
                stream = await client.chat.completions.create(**BODY)
                assert (await anext(stream)).choices[0].delta.content == "Hel"
                with pytest.raises(openai.APIError, match="was lost while it answered"):
                    await anext(stream)

    asyncio.run(main())


def test_a_client_that_leaves_ends_the_replicas_work_at_once():
    async def main():
        left = asyncio.Event()

        async def go_on_for_ever(line):
            await line.start_stream()
            await line.chunk(EVENTS[0])
            await line.client_left()
            left.set()

        async with running_front({"r0": go_on_for_ever}) as front:
            async with front.http.stream("POST", "/v1/chat/completions", json=BODY) as reply:
                assert await anext(reply.aiter_raw()) == EVENTS[0]
            await asyncio.wait_for(left.wait(), WAIT_S)
            while front.front.num_open:
                await asyncio.sleep(0)
            assert front.front.backends.sent.num_open("r0") == 0

    asyncio.run(main())


def test_a_client_that_leaves_before_the_first_byte_is_not_answered_elsewhere():
    async def main():
        arrived, left = asyncio.Event(), asyncio.Event()

        async def never_answer(line):
            arrived.set()
            await line.client_left()
            left.set()

        async with running_front({"r0": never_answer, "r1": stream_all}) as front:
            asking = asyncio.create_task(post(front))
            await arrived.wait()
            asking.cancel()
            await asyncio.wait_for(left.wait(), WAIT_S)
            while front.front.num_open:
                await asyncio.sleep(0)
            assert front.upstreams["r1"].seen == []

    asyncio.run(main())


def test_a_slow_client_holds_its_replica_back_instead_of_filling_memory():
    async def main():
        event = b"data: " + b"x" * 100_000 + b"\n\n"
        num_events, sent = 600, 0

        async def send_much(line):
            nonlocal sent
            await line.start_stream()
            for _ in range(num_events):
                await line.chunk(event)
                sent += 1
            await line.end_stream()

        async with (
            running_front({"r0": send_much}) as front,
            front.http.stream("POST", "/v1/chat/completions", json=BODY) as reply,
        ):
            pieces = reply.aiter_raw()
            num_bytes, before = len(await anext(pieces)), -1
            while before != sent:  # until nothing moves any more
                before = sent
                await asyncio.sleep(0.05)
            assert 0 < sent < num_events / 2
            async for piece in pieces:
                num_bytes += len(piece)
            assert num_bytes == num_events * len(event)

    asyncio.run(main())


def test_connections_to_a_replica_are_used_again():
    async def main():
        async with running_front({"r0": stream_all}) as front:
            for _ in range(3):
                await post(front)
            assert len(front.upstreams["r0"].seen) == 3
            assert front.upstreams["r0"].num_connections == 1

    asyncio.run(main())


def test_a_connection_that_went_while_it_rested_costs_nothing():
    async def main():
        async def answer_once(line):
            await stream_all(line)
            line.die()

        async with running_front({"r0": answer_once}) as front:
            for _ in range(3):
                assert (await post(front)).content == b"".join(EVENTS)

    asyncio.run(main())


def test_a_replica_that_hangs_costs_its_stream_and_no_request_without_a_byte():
    async def main():
        async def hang_after_one(line):
            await line.start_stream()
            if b"begin" in line.seen.body:
                await line.chunk(EVENTS[0])
            await line.client_left()

        async with running_front({"r0": hang_after_one, "r1": stream_all}) as front:
            begun = {**BODY, "messages": [{"role": "user", "content": "begin"}]}
            first = asyncio.create_task(front.http.post("/v1/chat/completions", json=begun))
            second = asyncio.create_task(post(front))
            while len(front.upstreams["r0"].seen) < 2:
                await asyncio.sleep(0.01)
            await front.lose("r0")
            cut_hung(front.front)
            assert not first.done()
            for _ in range(10):
                front.clock.advance(1.0)
                cut_hung(front.front)
            assert b"replica_lost" in (await first).content
            assert (await second).headers["x-collm-replica"] == "r1"

    asyncio.run(main())


def test_a_front_that_stood_still_itself_cuts_nobody_off_for_that():
    async def main():
        go_on = asyncio.Event()

        async def wait_between(line):
            await line.start_stream()
            await go_on.wait()
            await line.chunk(EVENTS[2])
            await line.end_stream()

        async with running_front({"r0": wait_between}) as front:
            answering = asyncio.create_task(post(front))
            while not front.upstreams["r0"].seen:
                await asyncio.sleep(0.01)
            await front.lose("r0")
            front.clock.advance(60.0)
            cut_hung(front.front)
            go_on.set()
            assert (await answering).content == EVENTS[2]

    asyncio.run(main())


def test_drain_lets_streams_end_and_its_limit_ends_them_with_words(monkeypatch):
    monkeypatch.setattr(run, "_LAST_WORDS_S", WAIT_S)

    async def main():
        async def never_end(line):
            await line.start_stream()
            await line.chunk(EVENTS[0])
            await line.client_left()

        async with (
            running_front({"r0": never_end}, drain_timeout_s=0.1) as front,
            front.http.stream("POST", "/v1/chat/completions", json=BODY) as reply,
        ):
            pieces = reply.aiter_raw()
            assert await anext(pieces) == EVENTS[0]
            front.stop.set()
            rest = b"".join([piece async for piece in pieces])
            assert b"The server is stopping" in rest

    asyncio.run(main())
