"""What is bound on arrival, and what only when its turn comes."""

import pytest

from collm.engine.config import SchedulerConfig
from collm.errors import UnknownAdapterError
from collm.types import FinishReason
from factories.engine import Loop, expected_tokens, request


@pytest.fixture
def loop():
    """One sequence runs at a time, and has the floor for a while."""
    loop = Loop(config=SchedulerConfig(max_running=1))
    loop.pins.publish("tutor", "1")
    loop.add(request("first", [5], max_tokens=20))
    loop.step()
    return loop


def test_a_request_that_names_an_adapter_gets_what_is_active_when_its_turn_comes(loop):
    loop.add(request("a", [1, 2], model="tutor"))
    assert loop.pins.pins["tutor@1"] == 0
    loop.pins.publish("tutor", "2")
    loop.drain()
    assert loop.last("a").version == "tutor@2"


def test_a_request_that_names_a_version_holds_it_while_it_waits(loop):
    asked = request("a", [1, 2], model="tutor@1", n=2)
    loop.add(asked)
    assert loop.pins.pins["tutor@1"] == 1
    loop.pins.publish("tutor", "2")
    loop.drain()
    for choice in range(2):
        assert loop.tokens("a", choice) == expected_tokens(asked, choice, "tutor@1")


def test_requests_of_one_call_hold_what_is_active_on_their_arrival(loop):
    call = [request(name, [1, number], model="tutor") for number, name in enumerate("abc")]
    loop.add_call(*call)
    assert loop.pins.pins["tutor@1"] == 3
    loop.pins.publish("tutor", "2")
    loop.drain()
    for one in call:
        assert loop.tokens(one.request_id) == expected_tokens(one, 0, "tutor@1")


def test_abort_and_finish_let_go_of_what_waiting_requests_hold(loop):
    loop.add_call(request("a", [1], model="tutor"), request("b", [2], model="tutor"))
    loop.abort("a")
    assert loop.pins.pins["tutor@1"] == 1
    loop.scheduler.finish("b", 0)
    assert loop.pins.pins["tutor@1"] == 0
    assert loop.last("a").finish_reason is FinishReason.ABORT


def test_a_call_that_names_nothing_is_refused_on_arrival(loop):
    loop.add_call(request("a", [1], model="gone"), request("b", [2], model="gone", n=2))
    assert isinstance(loop.last("a").error, UnknownAdapterError)
    assert isinstance(loop.last("b", 1).error, UnknownAdapterError)
    loop.drain()


def test_what_the_queue_has_no_place_for_holds_nothing():
    loop = Loop(config=SchedulerConfig(max_waiting=3))
    version = loop.pins.publish("tutor", "1")
    loop.add_call(request("a", [1], model="tutor"), request("b", [2], model="tutor"))
    loop.add_call(request("c", [1], model="tutor"), request("d", [2], model="tutor"))
    assert loop.last("c").finish_reason is loop.last("d").finish_reason is FinishReason.ERROR
    assert loop.pins.pins[version] == 2
    loop.drain()
