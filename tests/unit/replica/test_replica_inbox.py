import threading
from concurrent.futures import Future

import pytest

from collm.errors import AdapterError
from collm.replica.inbox import Abort, Finish, Inbox, Stop, tell
from collm.types import RequestId, VersionId, VersionInfo

INFO = VersionInfo(
    version=VersionId("a@1"), adapter="a", digest="d", rank=1, slot=0, num_pins=0, is_active=True
)


def test_messages_come_in_order_of_arrival():
    inbox, seen = Inbox(), []
    messages = [Abort(RequestId("x")), Finish(RequestId("y"), 1), Stop()]
    for message in messages:
        inbox.put(message)
    assert inbox.has_messages()
    inbox.drain(seen.append)
    assert seen == messages
    assert not inbox.has_messages()


def test_a_message_put_while_draining_is_handled_as_well():
    inbox, seen = Inbox(), []

    def handle(message):
        seen.append(message)
        if len(seen) == 1:
            inbox.put(Stop())

    inbox.put(Abort(RequestId("x")))
    inbox.drain(handle)
    assert seen == [Abort(RequestId("x")), Stop()]


def test_a_message_ends_the_wait_of_another_thread():
    inbox, has_woken = Inbox(), threading.Event()

    def wait():
        inbox.wait(60)
        has_woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    inbox.put(Stop())
    assert has_woken.wait(60)
    thread.join()


def test_a_message_that_came_before_the_wait_ends_it():
    inbox = Inbox()
    inbox.drain(lambda message: None)
    inbox.put(Stop())
    inbox.wait(60)
    assert inbox.has_messages()


def test_reply_is_told_a_result_or_an_error():
    good, bad = Future(), Future()
    tell(good, INFO)
    tell(bad, AdapterError("no"))
    assert good.result(0) == INFO
    with pytest.raises(AdapterError, match="no"):
        bad.result(0)


def test_reply_that_nobody_waits_for_is_dropped():
    cancelled = Future()
    cancelled.cancel()
    tell(cancelled, INFO)
    tell(None, INFO)
