"""Processes that start, get ready and end when a test says so."""

import asyncio
from itertools import count

from collm.clock import ManualClock
from collm.cluster.keeper import KeeperTime
from collm.errors import CollmError


class FakeProcess:
    def __init__(self, pid):
        self.pid = pid
        self.is_silent = False
        self._num_lines = 0
        self.num_asked = 0
        self.was_killed = False
        self._url = asyncio.get_running_loop().create_future()
        self._code = asyncio.get_running_loop().create_future()

    @property
    def num_lines(self):
        """One more each time that somebody looks, unless it is silent."""
        self._num_lines += not self.is_silent
        return self._num_lines

    def say_ready(self, url="http://127.0.0.1:1"):
        self._url.set_result(url)

    def end(self, code):
        if not self._url.done():
            self._url.set_result(None)
        if not self._code.done():
            self._code.set_result(code)

    async def ready(self):
        return await asyncio.shield(self._url)

    async def ended(self):
        return await asyncio.shield(self._code)

    def ask_to_end(self):
        self.num_asked += 1

    def kill(self):
        self.was_killed = True
        self.end(-9)


class FakeHost:
    """Remembers every process by its name, the oldest first."""

    def __init__(self):
        self.started = {}
        self.is_broken = False
        self._pids = count(100)

    async def start(self, spec):
        if self.is_broken:
            raise CollmError(f"{spec.name} cannot be started: no memory")
        process = FakeProcess(next(self._pids))
        self.started.setdefault(spec.name, []).append(process)
        return process

    def latest(self, name):
        return self.started[name][-1]


class FakeTime:
    """A clock that sleeping moves; every sleep is written down."""

    def __init__(self):
        self.clock = ManualClock()
        self.sleeps = []

    async def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.clock.advance(seconds)
        await asyncio.sleep(0)

    @property
    def keeper_time(self):
        return KeeperTime(
            clock=self.clock, sleep=self.sleep, wall_time_s=lambda: 1000.0 + self.clock.now_s()
        )


async def settle():
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)
