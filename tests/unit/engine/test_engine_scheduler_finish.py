"""Ending single choices from outside, as a stop string was met, and requests without a token."""

from collm.engine.config import SchedulerConfig
from collm.errors import AdapterError
from collm.types import FinishReason
from factories.engine import Loop, request


def finish(loop, request_id, choice):
    return loop.record(loop.scheduler.finish(request_id, choice))


def test_finish_ends_one_choice_and_the_others_go_on():
    loop = Loop()
    loop.pins.publish("tutor", "1")
    loop.add(request("a", [1, 2, 3], n=2, model="tutor"))
    loop.step()
    loop.step()
    (event,) = finish(loop, "a", 0)
    assert (event.finish_reason, event.token_id) == (FinishReason.STOP, None)
    assert event.version == "tutor@1"
    loop.scheduler.check()
    assert loop.pins.pins["tutor@1"] == 1
    loop.drain()
    assert len(loop.tokens("a", 0)) == 2
    assert len(loop.tokens("a", 1)) == 8


def test_finishing_the_last_choice_lets_go_of_blocks_and_version():
    loop = Loop()
    loop.pins.publish("tutor", "1")
    loop.add(request("a", [1, 2, 3], model="tutor"))
    loop.step()
    finish(loop, "a", 0)
    loop.assert_idle()


def test_finish_of_a_step_in_flight_keeps_its_blocks_until_the_step_is_over():
    loop = Loop()
    loop.add(request("a", [1, 2, 3]), request("b", [4]))
    plan = loop.scheduler.schedule(0.0)
    finish(loop, "a", 0)
    loop.scheduler.check()
    assert plan.items[0].sequence.block_table
    loop.finish(plan)
    assert [event.token_id for event in loop.events["a", 0]] == [None]
    loop.drain()
    assert len(loop.tokens("b")) == 8


def test_other_choices_start_although_the_first_ended_before_the_prompt_was_computed():
    loop = Loop(config=SchedulerConfig(max_step_tokens=2))
    loop.add(request("a", [1, 2, 3, 4, 5], n=2))
    loop.step()
    finish(loop, "a", 0)
    loop.drain()
    assert loop.tokens("a", 0) == []
    assert len(loop.tokens("a", 1)) == 8


def test_finish_of_an_unknown_or_ended_choice_says_nothing():
    loop = Loop()
    loop.add(request("a", [1], n=2, max_tokens=1))
    loop.step()
    assert finish(loop, "a", 0) == []
    assert finish(loop, "never seen", 0) == []
    loop.drain()
    assert finish(loop, "a", 1) == []


def test_request_whose_logits_are_no_numbers_ends_with_an_error_and_others_go_on():
    loop = Loop()
    loop.pins.publish("tutor", "1")
    loop.add(request("a", [1, 2, 3], n=2, model="tutor"), request("b", [4, 5]))
    loop.step()
    loop.step()
    loop.runner.broken.add("tutor@1")
    loop.step()
    for choice in range(2):
        event = loop.events["a", choice][-1]
        assert (event.finish_reason, event.token_id) == (FinishReason.ERROR, None)
        assert isinstance(event.error, AdapterError)
        assert "tutor@1" in str(event.error)
    loop.scheduler.check()
    loop.drain()
    assert len(loop.tokens("b")) == 8
    loop.assert_idle()
