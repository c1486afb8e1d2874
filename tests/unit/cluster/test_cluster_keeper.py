import asyncio

import pytest

from collm.cluster.hosts import ProcessSpec
from collm.cluster.keeper import Keeper
from collm.errors import CollmError, ConfigError
from factories.fake_processes import FakeHost, FakeTime, settle

SPEC = ProcessSpec(name="r0", command=("x",))


class Kept:
    """A keeper that runs, and what it reported."""

    def __init__(self):
        self.host = FakeHost()
        self.time = FakeTime()
        self.reports = []
        self.hangs, self.is_stuck = asyncio.Event(), asyncio.Event()
        self.keeper = Keeper(
            SPEC,
            self.host,
            self.time.keeper_time,
            lambda *report: self.reports.append(report),
            self.until_stuck,
            self.until_hung,
        )

    async def until_stuck(self, process):
        assert process is self.process
        await self.is_stuck.wait()
        self.is_stuck.clear()

    async def until_hung(self, endpoint):
        assert endpoint.pid == self.process.pid
        await self.hangs.wait()

    async def start(self):
        self.task = asyncio.create_task(self.keeper.run())
        await settle()

    @property
    def process(self):
        return self.host.latest("r0")


def keeping(scenario):
    async def main():
        kept = Kept()
        await kept.start()
        try:
            await scenario(kept)
        finally:
            kept.task.cancel()

    asyncio.run(main())


def test_dead_process_is_started_again_after_growing_waits():
    async def scenario(kept):
        for life_s in (0.0, 5.0, 59.0, 61.0, 0.0):
            kept.process.say_ready()
            await settle()
            kept.time.clock.advance(life_s)
            kept.process.end(-9)
            await settle()
        assert kept.time.sleeps == [1, 2, 4, 1, 2]
        assert len(kept.host.started["r0"]) == 6

    keeping(scenario)


def test_process_that_hangs_is_killed_and_started_again():
    async def scenario(kept):
        first = kept.process
        first.say_ready()
        await settle()
        kept.hangs.set()
        await settle()
        assert first.was_killed
        assert len(kept.host.started["r0"]) == 2
        assert not kept.process.was_killed  # it is not ready yet, which may take long

    keeping(scenario)


def test_process_that_hangs_on_its_start_is_killed_and_started_again():
    async def scenario(kept):
        first = kept.process
        kept.is_stuck.set()
        await settle()
        assert first.was_killed
        second = kept.process
        assert second is not first
        second.say_ready()
        await settle()
        kept.is_stuck.set()  # it was ready before
        await settle()
        assert not second.was_killed
        assert [endpoint is not None for _, endpoint in kept.reports][-1]

    keeping(scenario)


@pytest.mark.parametrize("is_ready", [True, False])
def test_process_that_was_asked_to_end_is_not_taken_for_one_that_hangs(is_ready):
    async def scenario(kept):
        if is_ready:
            kept.process.say_ready()
        await settle()
        kept.keeper.ask_to_end()
        kept.hangs.set()
        kept.is_stuck.set()
        await settle()
        assert not kept.process.was_killed
        kept.process.end(0)
        await kept.task

    keeping(scenario)


def test_every_readiness_and_end_is_reported():
    async def scenario(kept):
        kept.process.say_ready("http://a")
        await settle()
        (name, endpoint) = kept.reports[-1]
        assert (name, endpoint.url, endpoint.pid) == ("r0", "http://a", 100)
        assert endpoint.started_at_s == 1000.0
        kept.process.end(0)
        await settle()
        assert kept.reports[-1] == ("r0", None)
        kept.process.say_ready("http://b")
        await settle()
        assert (kept.reports[-1][1].url, kept.reports[-1][1].pid) == ("http://b", 101)
        assert kept.reports[-1][1].started_at_s == 1001.0

    keeping(scenario)


@pytest.mark.parametrize(("code", "kind"), [(1, CollmError), (2, ConfigError)])
def test_process_that_explained_why_it_never_got_ready_is_not_started_again(code, kind):
    async def scenario(kept):
        kept.process.end(code)
        with pytest.raises(kind, match="r0 cannot run"):
            await kept.task
        assert len(kept.host.started["r0"]) == 1

    keeping(scenario)


@pytest.mark.parametrize("code", [1, 2])
def test_process_that_was_ready_once_is_started_again_whatever_its_exit_code(code):
    async def scenario(kept):
        kept.process.say_ready()
        await settle()
        for _ in range(2):
            kept.process.end(code)
            await settle()
        assert len(kept.host.started["r0"]) == 3

    keeping(scenario)


def test_process_killed_before_it_is_ready_is_started_again():
    async def scenario(kept):
        kept.process.end(-9)
        await settle()
        assert len(kept.host.started["r0"]) == 2

    keeping(scenario)


def test_failed_first_start_is_an_error_and_a_later_one_is_tried_again():
    async def scenario(kept):
        kept.process.say_ready()
        await settle()
        kept.host.is_broken = True
        starting = kept.host.start

        async def break_twice(spec):
            kept.host.is_broken = len(kept.time.sleeps) < 3
            return await starting(spec)

        kept.host.start = break_twice
        kept.process.end(-9)
        await settle()
        assert kept.time.sleeps == [1, 2, 4]
        assert len(kept.host.started["r0"]) == 2

        first = Kept()
        first.host.is_broken = True
        await first.start()
        with pytest.raises(CollmError, match="no memory"):
            await first.task

    keeping(scenario)


def test_asked_to_end_it_asks_the_process_and_starts_no_other():
    async def scenario(kept):
        kept.process.say_ready()
        await settle()
        kept.keeper.ask_to_end()
        assert kept.process.num_asked == 1
        assert not kept.task.done()
        kept.process.end(0)
        await kept.task
        assert len(kept.host.started["r0"]) == 1

    keeping(scenario)


def test_asked_to_end_while_it_waits_it_ends_at_once():
    async def scenario(kept):
        kept.time.sleep = sleep_for_ever
        kept.keeper._time = kept.time.keeper_time
        kept.process.say_ready()
        await settle()
        kept.process.end(-9)
        await settle()
        kept.keeper.ask_to_end()
        await kept.task
        assert len(kept.host.started["r0"]) == 1

    async def sleep_for_ever(seconds):
        await asyncio.Event().wait()

    keeping(scenario)


def test_asked_to_end_while_a_process_starts_it_asks_it_once_it_runs():
    async def main():
        kept = Kept()
        task = asyncio.create_task(kept.keeper.run())
        may_start = asyncio.Event()
        starting = kept.host.start

        async def start_late(spec):
            await may_start.wait()
            return await starting(spec)

        kept.host.start = start_late
        await settle()
        kept.keeper.ask_to_end()
        may_start.set()
        await settle()
        assert kept.process.num_asked == 1
        kept.process.end(-15)
        await task

    asyncio.run(main())
