"""The replay client against a small server on the loopback that does as each prompt says."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from collm.chats import Message
from collm.clock import ManualClock, MonotonicClock
from collm.metrics.records import RequestRecord
from collm.workload.replay import ReplayTarget, replay
from collm.workload.requests import WorkloadRequest
from factories.ports import reserved_address
from factories.waiting import WAIT_S

Answer = Callable[["FakeServer", asyncio.StreamWriter], Awaitable[None]]


def make_request(prompt: str, at_s: float = 0.0, *, expected: str | None = None) -> WorkloadRequest:
    return WorkloadRequest(
        at_s=at_s,
        kind="length" if expected is None else "scored",
        site="s1",
        messages=(Message("user", prompt),),
        expected=expected,
        max_tokens=8,
        ignore_eos=expected is None,
    )


def event(content: str | None, version: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    chunk = {"id": "chatcmpl-7", "system_fingerprint": version, "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}\n\n'
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    b"x-collm-version: clinc@1\r\nconnection: close\r\n\r\n"
)


async def answer_well(server: "FakeServer", writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + event("oil", "clinc@1") + event(" change", "clinc@1"))
    writer.write(event(None, "clinc@1", "stop") + USAGE + b"data: [DONE]\n\n")


async def answer_after_three_others(server: "FakeServer", writer: asyncio.StreamWriter) -> None:
    await server.saw_four.wait()
    await answer_well(server, writer)


async def answer_mixed(server: "FakeServer", writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + event("oil", "clinc@1") + event(" change", "clinc@2"))
    writer.write(event(None, "clinc@2", "stop") + USAGE + b"data: [DONE]\n\n")


async def break_off(server: "FakeServer", writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + event("oil", "clinc@1"))


async def end_with_error(server: "FakeServer", writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + b'data: {"error": {"message": "replica lost"}}\n\n')


async def send_nonsense(server: "FakeServer", writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + b"data: nonsense\n\n")


async def hang_up(server: "FakeServer", writer: asyncio.StreamWriter) -> None:
    pass


async def never_end(server: "FakeServer", writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def refuse(status: str, message: bytes) -> Answer:
    async def answer(server: "FakeServer", writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(message)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + message)

    return answer


ANSWERS: dict[str, Answer] = {
    "well": answer_well,
    "after three others": answer_after_three_others,
    "mixed": answer_mixed,
    "break off": break_off,
    "error event": end_with_error,
    "nonsense": send_nonsense,
    "hang up": hang_up,
    "never end": never_end,
    "full": refuse("429 Too Many Requests", b'{"error": {"message": "no room"}}'),
    "broken": refuse("500 Internal Server Error", b"oops"),
}


class FakeServer:
    """Answers chat requests by their prompt and keeps the bodies in the order of arrival."""

    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.base_url = ""
        self.saw_four = asyncio.Event()
        self._tasks: set[asyncio.Task] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["FakeServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            self.bodies.append(body | {"_head": head})
            if len(self.bodies) == 4:
                self.saw_four.set()
            await ANSWERS[body["messages"][0]["content"]](self, writer)
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            self._tasks.discard(task)


def replay_all(
    *requests: WorkloadRequest, timeout_s: float = WAIT_S, api_key: str | None = None
) -> tuple[tuple[RequestRecord, ...], FakeServer]:
    async def run() -> tuple[tuple[RequestRecord, ...], FakeServer]:
        async with FakeServer().listening() as server:
            target = ReplayTarget(
                base_url=server.base_url, model="clinc", timeout_s=timeout_s, api_key=api_key
            )
            return await replay(requests, target, MonotonicClock()), server

    return asyncio.run(run())


def test_answer_becomes_a_record_with_times_text_and_version():
    (record,), server = replay_all(make_request("well", expected="oil change"), api_key="k")
    assert record.outcome == "completed"
    assert record.error is None
    assert (record.text, record.expected, record.finish_reason) == (
        "oil change", "oil change", "stop",
    )  # fmt: skip
    assert record.versions == ("clinc@1",)
    assert (record.num_prompt_tokens, record.num_output_tokens) == (4, 3)
    assert (record.site, record.kind, record.request_id) == ("s1", "scored", "chatcmpl-7")
    assert record.ttft_s is not None
    assert record.ttft_s > 0
    assert record.arrived_at_s <= record.first_token_at_s <= record.last_token_at_s
    (body,) = server.bodies
    assert body["temperature"] == 0
    assert body["stream_options"] == {"include_usage": True}
    assert "ignore_eos" not in body
    assert "authorization: bearer k" in body["_head"]


def test_length_request_asks_for_tokens_with_text_to_its_last_and_keeps_none():
    (record,), server = replay_all(make_request("well"))
    (body,) = server.bodies
    assert (body["ignore_eos"], body["min_tokens"], body["max_tokens"]) == (True, 8, 8)
    assert (record.text, record.outcome) == (None, "completed")


def test_answer_that_names_two_versions_shows_both():
    (record,), _ = replay_all(make_request("mixed"))
    assert record.versions == ("clinc@1", "clinc@2")
    assert record.is_mixed


@pytest.mark.parametrize(
    ("prompt", "outcome", "error"),
    [
        ("break off", "failed", "the stream ended before the answer did"),
        ("error event", "failed", "replica lost"),
        ("nonsense", "failed", "DataError: not a chat completion chunk: nonsense"),
        ("hang up", "failed", "RemoteProtocolError"),
        ("full", "rejected", "HTTP 429: no room"),
        ("broken", "failed", "HTTP 500: oops"),
    ],
)
def test_whatever_the_server_does_becomes_a_record(prompt, outcome, error):
    records, _ = replay_all(make_request(prompt), make_request("well"))
    assert records[0].outcome == outcome
    assert records[0].error.startswith(error)
    assert records[1].outcome == "completed"


def test_request_without_an_end_fails_in_bounded_time():
    (record,), _ = replay_all(make_request("never end"), timeout_s=0.05)
    assert (record.outcome, record.error) == ("failed", "no end within 0.05 s")


def test_no_server_at_all_is_a_failure_too():
    async def run() -> tuple[RequestRecord, ...]:
        with reserved_address() as address:
            url = f"http://127.0.0.1:{address.getsockname()[1]}"
            target = ReplayTarget(base_url=url, model="clinc")
            return await replay([make_request("well")], target, MonotonicClock())

    (record,) = asyncio.run(run())
    assert record.outcome == "failed"
    assert record.error.startswith("ConnectError")


def test_requests_leave_at_their_times_however_earlier_ones_fare():
    """The first answer comes only after the last request: a closed loop would wait for ever."""

    async def run() -> tuple[list[float], list[RequestRecord], tuple[RequestRecord, ...]]:
        clock = ManualClock(100.0)
        waits: list[float] = []
        seen: list[RequestRecord] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            clock.advance(seconds)
            await asyncio.sleep(0)

        requests = [
            make_request("after three others", 0.5),
            make_request("well", 1.0),
            make_request("well", 1.0),
            make_request("well", 3.0),
        ]
        async with FakeServer().listening() as server:
            target = ReplayTarget(base_url=server.base_url, model="clinc")
            records = await replay(requests, target, clock, on_record=seen.append, sleep=sleep)
        return waits, seen, records

    waits, seen, records = asyncio.run(run())
    assert waits == [0.5, 0.5, 0.0, 2.0]
    assert [record.arrived_at_s for record in records] == [100.5, 101.0, 101.0, 103.0]
    assert [record.outcome for record in records] == ["completed"] * 4
    assert sorted(map(id, seen)) == sorted(map(id, records))


def test_lateness_of_the_client_counts_into_ttft():
    async def run() -> tuple[RequestRecord, ...]:
        clock = ManualClock()

        async def oversleep(seconds: float) -> None:
            clock.advance(seconds + 0.25)
            await asyncio.sleep(0)

        async with FakeServer().listening() as server:
            target = ReplayTarget(base_url=server.base_url, model="clinc")
            return await replay([make_request("well", 1.0)], target, clock, sleep=oversleep)

    (record,) = asyncio.run(run())
    assert record.arrived_at_s == 1.0
    assert record.sent_late_s == 0.25
    assert record.ttft_s == 0.25


def test_cancelled_replay_records_requests_under_way_as_aborted():
    async def run() -> list[RequestRecord]:
        seen: list[RequestRecord] = []
        async with FakeServer().listening() as server:
            target = ReplayTarget(base_url=server.base_url, model="clinc")
            task = asyncio.create_task(
                replay([make_request("never end")], target, MonotonicClock(), on_record=seen.append)
            )
            while not server.bodies:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return seen

    (record,) = asyncio.run(run())
    assert record.outcome == "aborted"


def test_unsorted_requests_are_refused():
    with pytest.raises(ValueError, match="sorted"):
        replay_all(make_request("well", 1.0), make_request("well", 0.5))
