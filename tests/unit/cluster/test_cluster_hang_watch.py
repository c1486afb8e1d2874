"""When a process that lives counts as hung."""

import asyncio

import pytest

from collm.cluster.endpoints import Endpoint
from collm.cluster.hang_watch import HangWatch, StartWatch
from factories.fake_processes import FakeTime

ENDPOINT = Endpoint(replica_id="r0", url="http://r0", pid=1, started_at_s=1.0)


def num_asked(*answers: bool, patience_s: float) -> int:
    """Return how many questions are asked until a process hangs that answers some of them."""
    coming, time = iter(answers), FakeTime()

    async def ask(endpoint: Endpoint) -> None:
        assert endpoint == ENDPOINT
        if not next(coming):
            raise ConnectionRefusedError

    asyncio.run(HangWatch(ask, time.keeper_time, patience_s).until_hung(ENDPOINT))
    num = len(answers) - len(list(coming))
    assert time.clock.now_s() == 5.0 * (num - 1)
    return num


def test_process_hangs_when_it_says_nothing_for_so_long() -> None:
    assert num_asked(*[False] * 5, patience_s=12.0) == 3


def test_one_answer_is_enough_to_go_on() -> None:
    silent = [False] * 2
    assert num_asked(*silent, True, *silent, True, True, *silent * 2, patience_s=20.0) == 11


def test_an_answer_that_does_not_come_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collm.cluster.hang_watch._TIMEOUT_S", 0.01)

    async def hang(_: Endpoint) -> None:
        await asyncio.Event().wait()

    time = FakeTime()
    asyncio.run(HangWatch(hang, time.keeper_time, 10.0).until_hung(ENDPOINT))
    assert time.clock.now_s() == 5.0


class Starting:
    """A process that has said so many lines each time that somebody looks, in the end as many."""

    def __init__(self, *num_lines: int) -> None:
        self.pid = 1
        self._coming = list(num_lines)

    @property
    def num_lines(self) -> int:
        return self._coming.pop(0) if len(self._coming) > 1 else self._coming[0]


def seconds_until_stuck(process: Starting, patience_s: float) -> float:
    """Return after which time a start counts as hung."""
    time = FakeTime()
    asyncio.run(StartWatch(time.keeper_time, patience_s).until_stuck(process))
    return time.clock.now_s()


def test_start_hangs_when_it_says_nothing_for_so_long() -> None:
    assert seconds_until_stuck(Starting(0), patience_s=12.0) == 15.0


def test_start_that_says_something_now_and_then_may_take_as_long_as_it_likes() -> None:
    process = Starting(0, 0, 1, 1, 1, 2, 3, 3, 5)
    assert seconds_until_stuck(process, patience_s=20.0) == 9 * 5.0 + 20.0
