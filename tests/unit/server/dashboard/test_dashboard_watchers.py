import asyncio

import pytest

from collm.server.dashboard.events import EventStream, event
from collm.server.dashboard.watchers import Watchers
from collm.server.errors import UnavailableError


class Client:
    """The far end of an ASGI connection; ``stalls_after`` messages it takes no more."""

    def __init__(self, stalls_after=None):
        self.sent = []
        self.has_left = asyncio.Event()
        self._stalls_after = stalls_after

    async def receive(self):
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if self._stalls_after is not None and len(self.sent) >= self._stalls_after:
            await asyncio.Event().wait()
        self.sent.append(message)

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent)

    def watch(self, watchers, first=lambda: []):
        stream = EventStream(watchers, first)
        return asyncio.create_task(stream({"type": "http"}, self.receive, self.send))


async def until(condition):
    async with asyncio.timeout(60.0):
        while not condition():
            await asyncio.sleep(0.001)


def run(scene):
    asyncio.run(asyncio.wait_for(scene(), 60))


def test_stream_begins_with_what_there_is_and_goes_on_with_what_comes():
    async def scene():
        watchers, client = Watchers(), Client()
        task = client.watch(watchers, lambda: [event("history", b"{}")])
        await until(lambda: len(watchers) == 1 and client.body)
        watchers.publish(event("frame", b"1"))
        await until(lambda: b"frame" in client.body)
        assert client.body == b"event: history\ndata: {}\n\nevent: frame\ndata: 1\n\n"
        assert client.sent[0]["headers"].count((b"cache-control", b"no-store")) == 1
        client.has_left.set()
        await task
        assert len(watchers) == 0

    run(scene)


def test_long_history_goes_out_in_pieces():
    async def scene():
        watchers, client = Watchers(), Client()
        history = event("history", b"x" * 300_000)
        task = client.watch(watchers, lambda: [history])
        await until(lambda: client.body == history)
        assert max(len(message.get("body", b"")) for message in client.sent) <= 65_536
        client.has_left.set()
        await task

    run(scene)


def test_watcher_that_does_not_read_is_dropped_and_holds_up_no_other():
    async def scene():
        watchers, slow, quick = Watchers(), Client(stalls_after=2), Client()
        slow_task, quick_task = slow.watch(watchers), quick.watch(watchers)
        await until(lambda: len(watchers) == 2)
        for number in range(100):
            watchers.publish(event("frame", b"%d" % number))
            await until(lambda number=number: b"data: %d\n" % number in quick.body)
        await slow_task
        assert len(watchers) == 1
        assert slow.body.count(b"event: frame") == 1
        quick.has_left.set()
        await quick_task

    run(scene)


def test_silence_is_filled_with_heartbeats(monkeypatch):
    monkeypatch.setattr("collm.server.dashboard.events.HEARTBEAT_S", 0.01)

    async def scene():
        watchers, client = Watchers(), Client()
        task = client.watch(watchers)
        await until(lambda: client.body.count(b": still here\n\n") >= 2)
        client.has_left.set()
        await task

    run(scene)


def test_closing_ends_every_stream_in_good_order_and_takes_no_more():
    async def scene():
        watchers, client = Watchers(), Client()
        task = client.watch(watchers)
        await until(lambda: len(watchers) == 1)
        watchers.close()
        await task
        assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        with pytest.raises(UnavailableError), watchers.joined():
            pass

    run(scene)


def test_one_watcher_too_many_is_turned_away():
    watchers = Watchers(max_watchers=1)
    with watchers.joined(), pytest.raises(UnavailableError), watchers.joined():
        pass
    with watchers.joined():
        assert len(watchers) == 1
