import pytest

from collm.engine.config import SchedulerConfig
from collm.errors import CapacityError, QueueFullError, RequestError, UnknownAdapterError
from collm.types import BASE, FinishReason
from factories.engine import FixedPrefillLimit, Loop, expected_tokens, request


def chunks(plan):
    return {item.sequence.request.request_id: item.num_new_tokens for item in plan.items}


def test_a_request_gets_its_own_tokens_and_ends_at_max_tokens():
    loop = Loop()
    new = request("a", [1, 2, 3], max_tokens=5)
    loop.add(new)
    loop.drain()
    assert loop.tokens("a") == expected_tokens(new, 0, BASE)
    assert [e.finish_reason for e in loop.events["a", 0]] == [None] * 4 + [FinishReason.LENGTH]
    assert loop.last("a").version == BASE


def test_a_long_prompt_is_cut_into_chunks_beside_decodes():
    loop = Loop(config=SchedulerConfig(max_step_tokens=8))
    loop.add(request("a", [1, 2]))
    loop.step()
    loop.add(request("b", [3] * 20, arrived_at_s=1.0))
    assert [chunks(loop.step()) for _ in range(4)] == [
        {"a": 1, "b": 7},
        {"a": 1, "b": 7},
        {"a": 1, "b": 6},
        {"a": 1, "b": 1},
    ]


def test_the_prefill_limit_binds_prefill_alone_and_never_stops_it():
    loop = Loop(prefill_limit=FixedPrefillLimit(0))
    loop.add(request("a", [1, 2, 3]), request("b", [4]))
    assert chunks(loop.step()) == {"a": 1}
    loop.prefill_limit.num_tokens = 3
    assert chunks(loop.step()) == {"a": 2, "b": 1}
    loop.prefill_limit.num_tokens = 0
    assert chunks(loop.step()) == {"a": 1, "b": 1}


def test_the_prefill_limit_is_told_all_that_runs_and_waits():
    calls = []

    class Recorder(FixedPrefillLimit):
        def prefill_tokens(self, progress, now_s):
            calls.append(progress)
            return super().prefill_tokens(progress, now_s)

    loop = Loop(prefill_limit=Recorder())
    loop.add(request("a", [1, 2, 3]))
    loop.step()
    loop.step()  # only decodes: nobody asks
    loop.add(request("b", [1, 2, 3]))
    loop.step()
    (first,), (decode, second) = calls
    assert [one.is_decoding for one in (first, decode, second)] == [False, True, False]
    assert (decode.num_output_tokens, decode.num_context_tokens) == (2, 4)
    assert decode.last_token_at_s is not None
    assert second.num_remaining_prefill == 3


def test_waiting_requests_are_admitted_in_order_of_arrival():
    loop = Loop(config=SchedulerConfig(max_running=1))
    for name, arrived_at_s in (("late", 2.0), ("b", 1.0), ("a", 1.0)):
        loop.add(request(name, [1, 2], arrived_at_s=arrived_at_s, max_tokens=1))
    assert [list(chunks(loop.step())) for _ in range(3)] == [["a"], ["b"], ["late"]]


@pytest.mark.parametrize("limits", [{"max_running": 3}, {"max_step_tokens": 3}])
def test_no_more_sequences_run_than_allowed_or_than_fit_a_step(limits):
    loop = Loop(config=SchedulerConfig(**limits))
    loop.add(*(request(f"r{i}", [1, 2, 3]) for i in range(8)))
    most = 0
    while loop.scheduler.has_work:
        plan = loop.step()
        most = max(most, loop.scheduler.num_running)
        assert plan.num_tokens <= loop.config.max_step_tokens
    assert most == 3


def test_a_big_request_is_not_overtaken_for_ever_by_small_ones():
    loop = Loop(num_blocks=16, config=SchedulerConfig(max_running=8))
    loop.add(*(request(f"small{i}", [i], max_tokens=12) for i in range(4)))
    loop.step()
    loop.add(request("big", [1] * 50, arrived_at_s=1.0, max_tokens=4))
    for i in range(40):
        loop.add(request(f"later{i:02}", [i], arrived_at_s=2.0 + i, max_tokens=12))
        loop.step()
        if loop.events["big", 0]:
            break
    assert loop.tokens("big")
    later = {name for name, _ in loop.events if name.startswith("later")}
    assert all(len(loop.tokens(name)) == 1 for name in later), "admitted before the big one"
    loop.drain()


def test_simultaneous_events_are_sorted_by_arrival_then_id_then_choice():
    loop = Loop()
    loop.add(request("z", [1] * 9, n=2))
    loop.step()
    loop.add(request("b", [2] * 9, arrived_at_s=1.0), request("a", [3] * 9, arrived_at_s=1.0))
    events = loop.finish(loop.scheduler.schedule(loop.now_s))
    assert [(e.request_id, e.choice) for e in events] == [("z", 0), ("z", 1), ("a", 0), ("b", 0)]


def test_admission_leaves_a_spare_block_for_each_running_sequence():
    loop = Loop(num_blocks=4, block_size=2)
    loop.add(request("a", [1], max_tokens=2), request("b", [1, 2, 3, 4, 5, 6]))
    loop.step()
    assert (loop.scheduler.num_running, loop.scheduler.num_waiting) == (1, 1)
    loop.drain()
    assert len(loop.tokens("b")) == 2


# How choices end


def test_an_end_of_sequence_token_is_sent_and_ends_the_choice():
    new = next(
        new
        for new in (request("a", [i], max_tokens=40, ignore_eos=False) for i in range(100))
        if 2 < len(expected_tokens(new, 0, BASE)) < 30
    )
    loop = Loop()
    loop.add(new)
    loop.drain()
    assert loop.tokens("a") == expected_tokens(new, 0, BASE)
    assert loop.tokens("a")[-1] == 0
    assert loop.last("a").finish_reason == FinishReason.STOP


def test_a_stop_token_ends_a_choice_but_not_before_min_tokens():
    output = expected_tokens(request("a", [5], max_tokens=30), 0, BASE)
    stop = output[2]
    loop = Loop()
    loop.add(request("a", [5], max_tokens=30, stop_token_ids=(stop,)))
    loop.add(request("b", [5], max_tokens=30, stop_token_ids=(stop,), min_tokens=30))
    loop.drain()
    assert loop.tokens("a") == output[: output.index(stop) + 1]
    assert loop.last("a").finish_reason == FinishReason.STOP
    assert len(loop.tokens("b")) == 30


def test_a_choice_ends_at_the_length_of_the_model():
    loop = Loop(max_model_len=10)
    loop.add(request("a", [1, 2, 3], max_tokens=100))
    loop.drain()
    assert len(loop.tokens("a")) == 7
    assert loop.last("a").finish_reason == FinishReason.LENGTH


def test_a_sequence_that_fills_the_whole_pool_ends_there():
    loop = Loop(num_blocks=3, block_size=4)
    new = request("a", [1, 2, 3], max_tokens=100)
    loop.add(new)
    loop.drain()
    assert loop.tokens("a") == expected_tokens(new, 0, BASE, max_len=12)
    assert loop.last("a").finish_reason == FinishReason.LENGTH


# Refusals


@pytest.mark.parametrize(
    ("num_prompt", "n", "error"),
    [(64, 1, RequestError), (0, 1, RequestError), (20, 1, CapacityError), (2, 9, CapacityError)],
)
def test_what_can_never_be_served_is_refused_at_once(num_prompt, n, error):
    loop = Loop(num_blocks=5, config=SchedulerConfig(max_waiting=8))
    loop.add(request("a", [1] * num_prompt, n=n))
    assert not loop.scheduler.has_work
    for choice in range(n):
        (event,) = loop.events["a", choice]
        assert event.finish_reason == FinishReason.ERROR
        assert isinstance(event.error, error)


def test_a_call_that_fills_the_whole_queue_is_served_and_a_larger_one_never():
    """None of its own prompts takes the places that are kept for other models."""
    calls = [[request(f"{size}-{i}", [1], n=4) for i in range(size)] for size in (4, 5)]
    loop = Loop(config=SchedulerConfig(max_waiting=16, max_running=2))
    loop.add_call(*calls[1])
    for one in calls[1]:
        assert isinstance(loop.last(one.request_id, 3).error, CapacityError)
    assert not loop.scheduler.has_work
    loop.add_call(*calls[0])
    loop.drain()
    assert all(len(loop.tokens(one.request_id, 3)) == 8 for one in calls[0])


def test_a_call_without_places_for_all_of_it_waits_with_none():
    loop = Loop(config=SchedulerConfig(max_waiting=8, max_running=1))
    loop.add(request("first", [1], n=4))
    long = request("long", [1] * 64)
    loop.add_call(request("a", [1], n=2), request("b", [1], n=2), long)
    for name in "ab":
        assert isinstance(loop.last(name, 1).error, QueueFullError)
    assert isinstance(loop.last("long").error, RequestError), "no other try would help"
    assert loop.scheduler.num_waiting == 4


def test_a_prompt_of_the_greatest_length_is_served():
    loop = Loop(num_blocks=5)
    loop.add(request("a", [1] * 19))
    loop.drain()
    assert len(loop.tokens("a")) == 1


def test_a_full_queue_refuses_until_there_is_room():
    loop = Loop(config=SchedulerConfig(max_waiting=3, max_running=1))
    loop.add(request("a", [1], n=2), request("b", [1], n=2), request("c", [1]))
    assert isinstance(loop.last("b", 1).error, QueueFullError)
    assert ("c", 0) not in loop.events
    loop.drain()
    loop.add(request("b", [1], n=2))
    loop.drain()
    assert len(loop.tokens("b", 1)) == 8


# Choices of one request


@pytest.mark.parametrize("enable_prefix_cache", [True, False])
def test_choices_wait_for_the_first_one_and_let_others_pass(enable_prefix_cache):
    config = SchedulerConfig(max_step_tokens=8, enable_prefix_cache=enable_prefix_cache)
    loop = Loop(config=config)
    new = request("a", list(range(12)), n=3)
    loop.add(new)
    loop.add(request("b", [1, 2], arrived_at_s=1.0))
    assert chunks(loop.step()) == {"a": 8}
    assert chunks(loop.step()) == {"a": 4, "b": 2}
    plan = loop.step()
    assert {(i.sequence.request.request_id, i.sequence.choice) for i in plan.items} >= {("a", 1)}
    loop.drain()
    for choice in range(3):
        assert loop.tokens("a", choice) == expected_tokens(new, choice, BASE)
        num_cached = 8 if enable_prefix_cache and choice else 0
        assert loop.last("a", choice).num_cached_tokens == num_cached


def test_choices_share_the_blocks_of_their_prompt():
    loop = Loop()
    loop.add(request("a", list(range(14)), n=4))
    loop.step()
    plan = loop.step()
    tables = [item.sequence.block_table for item in plan.items]
    assert len(tables) == 4
    assert all(table[:3] == tables[0][:3] for table in tables)
    assert len({table[3] for table in tables}) == 4
    assert loop.pins.num_pinned == 1
    loop.drain()


# Versions


def test_a_request_is_bound_when_admitted_and_a_swap_changes_only_later_ones():
    loop = Loop(config=SchedulerConfig(max_step_tokens=3))
    v1 = loop.pins.publish("tutor", "1")
    new = request("a", [1, 2, 3], model="tutor", n=2, max_tokens=8)
    late = request("b", [1, 2, 3], model="tutor", arrived_at_s=1.0, max_tokens=12)
    loop.add(new, late)
    loop.step()
    v2 = loop.pins.publish("tutor", "2")
    loop.drain()
    for choice in range(2):
        assert loop.tokens("a", choice) == expected_tokens(new, choice, v1)
        assert {e.version for e in loop.events["a", choice]} == {v1}
    assert loop.tokens("b") == expected_tokens(late, 0, v2)
    assert loop.pins.num_pinned == 2


def test_a_preempted_request_keeps_its_version_and_resumes_with_the_same_tokens():
    loop = Loop(num_blocks=6, block_size=2, config=SchedulerConfig(enable_prefix_cache=False))
    v1 = loop.pins.publish("tutor", "1")
    a = request("a", [1, 2], model="tutor", max_tokens=9)
    b = request("b", [3, 4], model="tutor", arrived_at_s=1.0, max_tokens=9)
    loop.add(a, b)
    loop.step()
    loop.pins.publish("tutor", "2")
    sequences = [item.sequence for item in loop.step().items]
    loop.drain()
    assert [s.num_preemptions > 0 for s in sequences] == [False, True]
    assert loop.tokens("a") == expected_tokens(a, 0, v1)
    assert loop.tokens("b") == expected_tokens(b, 0, v1)
    assert loop.pins.num_pinned == 2


def test_a_prefix_hit_never_crosses_versions():
    loop = Loop()
    loop.pins.publish("tutor", "1")
    prompt = list(range(12))
    for name, model in (("a", "tutor"), ("b", "base"), ("c", "tutor"), ("d", "tutor@1")):
        if name == "c":
            loop.pins.publish("tutor", "2")
        loop.add(request(name, prompt, model=model))
        loop.drain()
    cached = {name: loop.last(name).num_cached_tokens for name in "abcd"}
    assert cached == {"a": 0, "b": 0, "c": 0, "d": 8}


def test_an_adapter_that_vanished_while_queued_is_an_error_of_that_request_alone():
    loop = Loop(config=SchedulerConfig(max_running=2))
    version = loop.pins.publish("tutor", "1")
    loop.add(request("a", [1, 2], max_tokens=3), request("a2", [1, 2], max_tokens=3))
    loop.step()
    loop.add(request("b", [1], n=2, model="tutor"), request("c", [3], arrived_at_s=1.0))
    loop.pins.remove(version)
    loop.drain()
    for choice in range(2):
        (event,) = loop.events["b", choice]
        assert event.finish_reason == FinishReason.ERROR
        assert isinstance(event.error, UnknownAdapterError)
        assert event.version is None
    assert len(loop.tokens("a")) == 3
    assert len(loop.tokens("c")) == 8


def test_the_error_of_a_lone_failed_admission_leaves_with_the_empty_plan():
    loop = Loop()
    loop.add(request("a", [1], model="gone@1"))
    plan = loop.scheduler.schedule(0.0)
    assert plan.is_empty
    (event,) = loop.finish(plan)
    assert isinstance(event.error, UnknownAdapterError)
    loop.assert_idle()


# Progress


def test_progress_lists_running_before_waiting():
    loop = Loop(config=SchedulerConfig(max_running=1))
    loop.add(request("a", [1, 2, 3]), request("b", [1, 2], arrived_at_s=1.0))
    loop.step()
    running, waiting = loop.scheduler.progress()
    assert (running.is_running, waiting.is_running) == (True, False)
    assert (running.num_output_tokens, running.num_remaining_prefill) == (1, 1)
    assert (running.num_context_tokens, running.last_token_at_s) == (3, 1.0)
    assert (waiting.num_remaining_prefill, waiting.num_context_tokens) == (2, 0)
    assert (loop.scheduler.num_running, loop.scheduler.num_waiting) == (1, 1)
