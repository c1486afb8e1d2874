from collm.engine.config import SchedulerConfig
from collm.types import FinishReason, VersionId
from factories.engine import Loop, request


def test_abort_while_waiting_needs_no_version():
    loop = Loop()
    loop.add(request("a", [1], n=2, model="gone@1"))
    loop.abort("a")
    loop.abort("a")
    for choice in range(2):
        (event,) = loop.events["a", choice]
        assert event.finish_reason == FinishReason.ABORT
        assert event.version is None
    loop.assert_idle()


def test_a_request_that_found_no_room_yet_has_no_version():
    loop = Loop(num_blocks=4, block_size=2)
    loop.pins.publish("tutor", "1")
    loop.add(request("a", [1], max_tokens=2), request("b", [1] * 6, model="tutor"))
    loop.step()
    assert loop.pins.pins["tutor@1"] == 0
    loop.abort("b")
    assert loop.last("b").version is None


def test_abort_between_steps_ends_every_choice_that_still_lives():
    loop = Loop()
    loop.add(request("a", list(range(9)), n=3))
    loop.step()
    loop.abort("a")
    loop.assert_idle()
    assert [loop.last("a", c).finish_reason for c in range(3)] == [FinishReason.ABORT] * 3
    assert len(loop.events["a", 0]) == 2


def test_abort_of_a_step_in_flight_keeps_its_blocks_until_the_step_is_over():
    loop = Loop(config=SchedulerConfig(max_step_tokens=8))
    loop.pins.publish("tutor", "1")
    loop.add(request("a", [1, 2, 3], model="tutor"), request("b", [4, 5]))
    plan = loop.scheduler.schedule(0.0)
    loop.abort("a")
    loop.abort("a")
    loop.scheduler.check()
    assert loop.pins.pins["tutor@1"] == 1
    assert plan.items[0].sequence.block_table
    loop.finish(plan)
    assert loop.pins.pins["tutor@1"] == 0
    assert [e.finish_reason for e in loop.events["a", 0]] == [FinishReason.ABORT]
    loop.drain()
    assert len(loop.tokens("b")) == 8


def test_abort_while_preempted_drops_the_version():
    loop = Loop(num_blocks=4, block_size=2)
    loop.pins.publish("tutor", "1")
    loop.add(request("a", [1, 2], max_tokens=7))
    loop.add(request("b", [3], model="tutor", arrived_at_s=1.0, max_tokens=7))
    while not (loop.scheduler.num_waiting and loop.tokens("b")):
        loop.step()
    assert loop.pins.pins["tutor@1"] == 1
    loop.abort("b")
    assert loop.pins.pins["tutor@1"] == 0
    loop.drain()
    assert loop.last("b").finish_reason == FinishReason.ABORT
    assert loop.last("b").version == VersionId("tutor@1")


def test_abort_of_an_unknown_or_ended_request_says_nothing():
    loop = Loop()
    loop.add(request("a", [1], max_tokens=1))
    loop.drain()
    loop.abort("a")
    loop.abort("never seen")
    assert len(loop.events["a", 0]) == 1


def test_a_step_that_fails_ends_its_requests_and_no_others():
    loop = Loop(config=SchedulerConfig(max_running=2))
    loop.pins.publish("tutor", "1")
    loop.add(request("a", [1], model="tutor", n=2), request("b", [2]), request("c", [3]))
    plan = loop.scheduler.schedule(0.0)
    loop.abort("b")
    error = RuntimeError("out of memory")
    loop.record(loop.scheduler.fail(plan, error))
    loop.scheduler.check()
    assert [loop.last("a", c).error for c in range(2)] == [error, error]
    assert loop.last("b").finish_reason == FinishReason.ABORT
    loop.drain()
    assert len(loop.tokens("c")) == 8
