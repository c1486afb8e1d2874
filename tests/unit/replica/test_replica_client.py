"""Streams of events, seen from asyncio; a thread plays the loop."""

import asyncio
import threading

from collm.replica.client import Deliveries, TokenStream
from collm.replica.inbox import Abort, Finish, Inbox
from collm.types import FinishReason, RequestId, TokenEvent
from factories.replicas import greedy


def token(request_id, choice=0, finish=None):
    return TokenEvent(
        request_id=RequestId(request_id), choice=choice, token_id=5, finish_reason=finish
    )


def messages(inbox):
    seen = []
    inbox.drain(seen.append)
    return seen


def publish_in_thread(deliveries, *events):
    thread = threading.Thread(target=deliveries.publish, args=(list(events),))
    thread.start()
    thread.join()


def run(test):
    asyncio.run(asyncio.wait_for(test, 60))


def test_stream_yields_its_own_events_to_the_last():
    async def test():
        deliveries, inbox = Deliveries(), Inbox()
        stream = TokenStream(greedy("a", [1]), deliveries, inbox)
        last = token("a", finish=FinishReason.LENGTH)
        publish_in_thread(deliveries, token("a"), token("other"), last)
        assert [event async for event in stream] == [token("a"), last]
        await stream.aclose()
        assert messages(inbox) == []

    run(test())


def test_closing_a_stream_aborts_what_still_runs_once():
    async def test():
        deliveries, inbox = Deliveries(), Inbox()
        stream = TokenStream(greedy("a", [1]), deliveries, inbox)
        publish_in_thread(deliveries, token("a"))
        await anext(stream)
        await stream.aclose()
        await stream.aclose()
        assert messages(inbox) == [Abort(RequestId("a"))]
        publish_in_thread(deliveries, token("a"))
        assert [event async for event in stream] == []

    run(test())


def test_finish_asks_for_the_end_of_one_choice():
    async def test():
        deliveries, inbox = Deliveries(), Inbox()
        stream = TokenStream(greedy("a", [1]), deliveries, inbox)
        stream.finish(0)
        assert messages(inbox) == [Finish(RequestId("a"), 0)]
        publish_in_thread(deliveries, token("a", finish=FinishReason.STOP))
        assert len([event async for event in stream]) == 1

    run(test())


def test_streams_end_when_the_loop_does_those_opened_later_as_well():
    async def test():
        deliveries, inbox = Deliveries(), Inbox()
        early = TokenStream(greedy("a", [1]), deliveries, inbox)
        publish_in_thread(deliveries, token("a"))
        threading.Thread(target=deliveries.end).start()
        assert len([event async for event in early]) == 1
        late = TokenStream(greedy("b", [1]), deliveries, inbox)
        assert [event async for event in late] == []
        assert [event async for event in late] == []

    run(test())


def test_events_for_a_closed_event_loop_are_dropped():
    deliveries = Deliveries()

    async def open_stream():
        TokenStream(greedy("a", [1]), deliveries, Inbox())

    asyncio.run(open_stream())
    deliveries.publish([token("a")])
    deliveries.end()
