import math

import pytest

from collm.sim.events import EventQueue, Rank


def run_all(queue: EventQueue) -> None:
    while queue.next_s < math.inf:
        queue.run_next()


def test_events_run_by_time_then_rank_then_order_of_putting() -> None:
    queue, ran = EventQueue(), []
    for name, at_s, rank in (
        ("late", 2.0, Rank.FAULT),
        ("arrival", 1.0, Rank.ARRIVAL),
        ("allocation", 1.0, Rank.ALLOCATION),
        ("round", 1.0, Rank.ROUND),
        ("snapshot", 1.0, Rank.SNAPSHOT),
        ("snapshot after it", 1.0, Rank.SNAPSHOT),
        ("fault", 1.0, Rank.FAULT),
    ):
        queue.put(at_s, rank, lambda now_s, name=name: ran.append((name, now_s)))
    run_all(queue)
    assert [name for name, _ in ran] == [
        "fault",
        "snapshot",
        "snapshot after it",
        "round",
        "allocation",
        "arrival",
        "late",
    ]
    assert [now_s for _, now_s in ran] == [1.0] * 6 + [2.0]


def test_event_put_for_the_present_runs_before_later_ranks_of_the_present() -> None:
    queue, ran = EventQueue(), []

    def first(now_s: float) -> None:
        ran.append("first")
        queue.put(now_s, Rank.ROUND, lambda now_s: ran.append("woken"))

    queue.put(1.0, Rank.SNAPSHOT, first)
    queue.put(1.0, Rank.ARRIVAL, lambda now_s: ran.append("arrival"))
    run_all(queue)
    assert ran == ["first", "woken", "arrival"]


def test_nothing_can_be_put_into_the_past() -> None:
    queue = EventQueue()
    queue.put(1.0, Rank.FAULT, lambda now_s: None)
    queue.run_next()
    with pytest.raises(AssertionError):
        queue.put(0.5, Rank.FAULT, lambda now_s: None)
