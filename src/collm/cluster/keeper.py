"""Keeps one process running: starts it again when it ends or hangs, after a wait."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from collm.clock import Clock
from collm.cluster.backoff import Backoff
from collm.cluster.endpoints import Endpoint
from collm.cluster.hosts import Process, ProcessSpec, ReplicaHost
from collm.errors import CollmError, ConfigError

_log = logging.getLogger(__name__)

# Exit codes of the commands that it runs; cli/exit_codes.py has them all.
_FAILED = 1
_WRONG_SETTING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperTime:
    """Time as a keeper sees it."""

    clock: Clock
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    wall_time_s: Callable[[], float] = time.time
    """Seconds since 1970, for others to read."""


class Keeper:
    """One process that is started again whenever it ends, until it is asked to.

    A process that ends with an exit code of its own before it was ever ready has said why it
    cannot run, and starting it again would not help: that is an error.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        host: ReplicaHost,
        time: KeeperTime,
        report: Callable[[str, Endpoint | None], None],
        until_stuck: Callable[[Process], Coroutine[Any, Any, None]],
        until_hung: Callable[[Endpoint], Coroutine[Any, Any, None]],
    ) -> None:
        """Prepare; nothing starts before ``run``.

        Args:
            spec: The process.
            host: Where it runs.
            time: Clock and waits.
            report: Called with the process's name, and where it listens once it is ready, or
                ``None`` once it has ended.
            until_stuck: Returns when a process that was just started hangs, which then is killed.
            until_hung: Returns when a process that was ready hangs, which then is killed.
        """
        self._spec = spec
        self._host = host
        self._time = time
        self._report = report
        self._until_stuck = until_stuck
        self._until_hung = until_hung
        self._backoff = Backoff()
        self._process: Process | None = None
        self._was_ready = False
        self._is_ending = asyncio.Event()

    async def run(self) -> None:
        """Keep the process running; return when it has ended after ``ask_to_end``.

        Raises:
            ConfigError: It was never ready, and ended because of a wrong setting.
            CollmError: It was never ready, and ended for another reason of its own, or could not
                be started.
        """
        while not self._is_ending.is_set():
            started_at_s = self._time.clock.now_s()
            reason = await self._run_once()
            if not self._is_ending.is_set():
                wait_s = self._backoff.after(self._time.clock.now_s() - started_at_s)
                _log.warning("%s %s; it starts again in %g s", self._spec.name, reason, wait_s)
                await self._wait(wait_s)

    def ask_to_end(self) -> None:
        """Do not start the process again, and ask it to end; a second time, to end now."""
        self._is_ending.set()
        if self._process is not None:
            self._process.ask_to_end()

    def kill(self) -> None:
        """Do not start the process again, and end it, whatever it does."""
        self._is_ending.set()
        if self._process is not None:
            self._process.kill()

    async def _run_once(self) -> str:
        """Run the process from its start to its end; return how it ended."""
        name = self._spec.name
        started_at_s = self._time.wall_time_s()
        try:
            process = await self._host.start(self._spec)
        except CollmError as error:
            if not self._was_ready:
                raise
            return f"did not start: {error}"
        self._process = process
        if self._is_ending.is_set():
            process.ask_to_end()
        await self._guard(process, process.ready(), self._until_stuck(process))
        url = await process.ready()
        if url is not None:
            self._was_ready = True
            _log.info("%s (pid %d) is ready at %s", name, process.pid, url)
            endpoint = Endpoint(
                replica_id=name, url=url, pid=process.pid, started_at_s=started_at_s
            )
            self._report(name, endpoint)
            await self._guard(process, process.ended(), self._until_hung(endpoint))
        code = await process.ended()
        self._process = None
        self._report(name, None)
        if not (self._was_ready or self._is_ending.is_set()):
            self._refuse(code)
        return f"(pid {process.pid}) ended with exit code {code}"

    async def _guard(
        self,
        process: Process,
        until: Coroutine[Any, Any, object],
        until_hung: Coroutine[Any, Any, None],
    ) -> None:
        """Wait until a process is ready, or ends; bring its end about if it hangs before."""
        coming = asyncio.create_task(until)
        hanging = asyncio.create_task(until_hung)
        try:
            await asyncio.wait((coming, hanging), return_when=asyncio.FIRST_COMPLETED)
            if hanging.done() and not self._is_ending.is_set():
                hanging.result()  # raises what went wrong in asking
                _log.warning("%s (pid %d) hangs and is killed", self._spec.name, process.pid)
                process.kill()
        finally:
            for task in (coming, hanging):
                task.cancel()

    def _refuse(self, code: int) -> None:
        """Raise when the process has said why it cannot run."""
        if code == _WRONG_SETTING:
            raise ConfigError(
                f"{self._spec.name} cannot run with these settings; its own messages say why"
            )
        if code == _FAILED:
            raise CollmError(f"{self._spec.name} cannot run; its own messages say why")

    async def _wait(self, seconds: float) -> None:
        """Sleep, but not into the end."""
        sleeping = asyncio.ensure_future(self._time.sleep(seconds))
        ending = asyncio.create_task(self._is_ending.wait())
        await asyncio.wait({sleeping, ending}, return_when=asyncio.FIRST_COMPLETED)
        for task in (sleeping, ending):
            task.cancel()
