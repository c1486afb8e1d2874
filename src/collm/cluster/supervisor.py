"""The parent's work: keep the front and the replicas running, and end them in good order."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from collm.cluster.endpoints import Endpoint, write_endpoints
from collm.cluster.hang_watch import Ask, HangWatch, StartWatch
from collm.cluster.hosts import ProcessSpec, ReplicaHost
from collm.cluster.keeper import Keeper, KeeperTime

_log = logging.getLogger(__name__)

_LAST_WORDS_S = 10.0
"""Time beyond the drain limit in which a process puts away what it holds."""
_PATIENCE_S = 60.0
"""How long a process may say nothing; a replica gets no requests after a second of that."""
_START_PATIENCE_S = 300.0
"""The same of one that starts: before its first word it loads what it is made of, from any disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterProcesses:
    """What a cluster consists of."""

    front: ProcessSpec
    """The process that users talk to."""
    front_host: ReplicaHost
    replicas: Sequence[ProcessSpec]
    """At least one; all names differ."""
    replica_host: ReplicaHost
    ask_front: Ask
    """Whoever answers no question for a minute is killed, and started again; so is who starts and
    says nothing for five."""
    ask_replica: Ask


class Supervisor:
    """Runs one front and its replicas, and tells the front where the replicas listen."""

    def __init__(
        self,
        processes: ClusterProcesses,
        endpoints: Path,
        *,
        drain_s: float,
        time: KeeperTime,
        on_ready: Callable[[], None],
    ) -> None:
        """Prepare; nothing starts before ``run``.

        Args:
            processes: What to run.
            endpoints: The file that says where ready replicas listen.
            drain_s: How long open answers may go on after the end was asked for.
            time: Clock and waits.
            on_ready: Called once, when the front and every replica have been ready.
        """
        self._endpoints = endpoints
        self._drain_s = drain_s
        self._on_ready = on_ready
        front, replicas = processes.front, processes.replicas
        patience_s = max(_PATIENCE_S, drain_s + _LAST_WORDS_S)
        of_front = HangWatch(processes.ask_front, time, patience_s).until_hung
        of_replica = HangWatch(processes.ask_replica, time, patience_s).until_hung
        starting = StartWatch(time, _START_PATIENCE_S).until_stuck
        self._front = Keeper(front, processes.front_host, time, self._note, starting, of_front)
        self._replicas = tuple(
            Keeper(spec, processes.replica_host, time, self._note_replica, starting, of_replica)
            for spec in replicas
        )
        self._listening: dict[str, Endpoint] = {}
        self._not_yet_ready = {front.name, *(spec.name for spec in replicas)}

    async def run(
        self, stop: asyncio.Event, hurry: asyncio.Event, on_stop: Callable[[], None]
    ) -> None:
        """Keep everything running until ``stop`` is set; then end the front, then the replicas.

        Args:
            stop: Asks for the end: open answers go on up to the drain limit.
            hurry: Asks not to wait for open answers any longer.
            on_stop: Called before the front is asked to end.

        Raises:
            CollmError: A process could not start, for a reason that a restart does not mend;
                everything else was ended.
        """
        write_endpoints(self._endpoints, ())
        front = asyncio.create_task(self._front.run())
        replicas = [asyncio.create_task(keeper.run()) for keeper in self._replicas]
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((front, *replicas, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            on_stop()
            _log.info("stopping the front")
            await self._end((self._front,), (front,), hurry)
            _log.info("stopping %d replicas", len(replicas))
            await self._end(self._replicas, replicas, hurry)
            write_endpoints(self._endpoints, ())
        for task in (front, *replicas):
            task.result()

    def _note(self, name: str, endpoint: Endpoint | None) -> None:
        """Say so when everything has been ready for the first time."""
        if endpoint is not None and name in self._not_yet_ready:
            self._not_yet_ready.remove(name)
            if not self._not_yet_ready:
                self._on_ready()

    def _note_replica(self, name: str, endpoint: Endpoint | None) -> None:
        """Tell the front about a replica that listens, or no longer does."""
        self._listening.pop(name, None)
        if endpoint is not None:
            self._listening[name] = endpoint
        write_endpoints(self._endpoints, [self._listening[key] for key in sorted(self._listening)])
        self._note(name, endpoint)

    async def _end(
        self,
        keepers: Sequence[Keeper],
        tasks: Sequence["asyncio.Task[None]"],
        hurry: asyncio.Event,
    ) -> None:
        """Ask to end; ask again when there is a hurry or no more time; kill what is left."""
        for keeper in keepers:
            keeper.ask_to_end()
        hurrying = asyncio.create_task(hurry.wait())
        ending = asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.wait(
            (ending, hurrying),
            timeout=self._drain_s + _LAST_WORDS_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        hurrying.cancel()
        if not ending.done():
            for keeper in keepers:
                keeper.ask_to_end()
            await asyncio.wait((ending,), timeout=_LAST_WORDS_S)
        if not ending.done():
            _log.warning("killing what has not ended")
            for keeper in keepers:
                keeper.kill()
        await ending
