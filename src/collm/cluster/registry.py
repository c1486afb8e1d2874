"""Which replicas there are, which of them answer, and how they stand."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NoReturn

from collm.clock import Clock
from collm.cluster.asking import SnapshotSource, ask
from collm.cluster.endpoints import Endpoint
from collm.cluster.endpoints_watch import EndpointsWatch
from collm.cluster.routing_config import RegistryConfig
from collm.cluster.sent import Sent
from collm.cluster.table import ReplicaTable
from collm.errors import CollmError
from collm.types import ReplicaSnapshot

_log = logging.getLogger(__name__)
_PATIENCE_S = 5.0
"""How long replicas that fell silent may take to answer when there is no other left: one that is
merely slow is better than none, and a client has waited so long before it is told that there is
none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A replica, as lists and dashboards show it."""

    endpoint: Endpoint
    is_live: bool
    """Whether it answers and may be sent requests."""
    silent_s: float | None
    """How long it has not, while the front could have heard it; ``None`` before it ever did."""
    snapshot: ReplicaSnapshot | None
    """Its latest one, while it is live."""


@dataclass(frozen=True, slots=True)
class RegistryEvent:
    """A replica began or ceased to answer."""

    replica_id: str
    kind: Literal["back", "gone"]
    """``back`` also when it answers for the first time."""


class Registry:
    """The replicas in the endpoints file, each asked for its snapshot again and again.

    A replica is live from its first answer until it has not answered for ``dead_after_s``, a
    connection to it failed, or it left the file. One whose step loop stands still gives no answers,
    whatever its HTTP thread says. Time in which this process stood still itself, as everybody on
    its machine may have done, is nobody's silence. Belongs to one event loop.

    Args:
        source: Asks one replica.
        sent: The front's book, told of replicas that are gone.
        clock: Says when snapshots were taken.
        config: How often and how long to ask.
        expected: Names of replicas that belong to the cluster, listed at the moment or not: who is
            being started again is away, and not unknown.
    """

    def __init__(
        self,
        source: SnapshotSource,
        sent: Sent,
        clock: Clock,
        config: RegistryConfig,
        expected: Iterable[str] = (),
    ) -> None:
        self._source = source
        self._sent = sent
        self._clock = clock
        self._config = config
        self._expected = frozenset(expected)
        self._watched: dict[str, _Watched] = {}
        self._lost_names: dict[str, frozenset[str]] = {}
        """Of each replica that was live once and is not now, what requests could name there."""
        self._table = ReplicaTable()
        self._listeners: list[Callable[[RegistryEvent], None]] = []
        self._listened_s, self._looked_at_s = 0.0, clock.now_s()

    @property
    def table(self) -> ReplicaTable:
        """The latest snapshot of every live replica; changes in place."""
        return self._table

    def liveness(self) -> dict[str, bool]:
        """Return whether each replica of the cluster answers, by name."""
        names = sorted(self._expected | self._watched.keys())
        return {name: name in self._watched and self._watched[name].is_live for name in names}

    def lost(self, model: str) -> str | None:
        """Return who served a name that no live replica serves; ``None`` if nobody who is away did.

        Where no replica is live, none is missed in particular.
        """
        if not self._lost_names or not len(self._table) or self._table.pool(model) is not None:
            return None
        return next((one for one, names in self._lost_names.items() if model in names), None)

    def members(self) -> tuple[Member, ...]:
        """Return every replica that is listed, by id."""
        return tuple(self._member(self._watched[one]) for one in sorted(self._watched))

    def member(self, replica_id: str) -> Member | None:
        """Return one replica, if there is one of this id."""
        watched = self._watched.get(replica_id)
        return None if watched is None else self._member(watched)

    def subscribe(self, listener: Callable[[RegistryEvent], None]) -> None:
        """Call ``listener`` at every event, in the event loop; it must not block."""
        self._listeners.append(listener)

    def adopt(self, endpoints: Iterable[Endpoint]) -> None:
        """Watch these replicas and no others; one that was restarted has to answer anew."""
        wanted = {endpoint.replica_id: endpoint for endpoint in endpoints}
        for replica_id, watched in list(self._watched.items()):
            if wanted.get(replica_id) != watched.endpoint:
                self._lose(watched, "replaced" if replica_id in wanted else "no longer listed")
                watched.cancel()
                del self._watched[replica_id]
        for replica_id, endpoint in wanted.items():
            if replica_id not in self._watched:
                self._watched[replica_id] = _Watched(endpoint)

    def suspect(self, replica_id: str) -> None:
        """Take a replica out at once, as when no connection was made, until it answers again."""
        watched = self._watched.get(replica_id)
        if watched is not None:
            watched.suspected_at_s, watched.is_new = self._clock.now_s(), False
            self._lose(watched, "no connection")

    def expire(self) -> None:
        """Take out replicas whose silence would reach ``dead_after_s`` before the next look."""
        limit_s = self._config.dead_after_s - self._config.poll_every_s
        for watched in self._watched.values():
            silent_s = self._silent_s(watched)
            if silent_s is not None and silent_s > limit_s:
                self._lose(watched, "no answer")

    async def refresh(self) -> None:
        """Ask every replica once, and wait for what they say."""
        self._ask_all()
        tasks = [one.task for one in self._watched.values() if one.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        self.expire()

    async def ask_silent(self) -> bool:
        """Ask those that fell silent once more, patiently; return whether one is live again.

        Those that a new front has not heard yet are among them, so that who called while it started
        gets an answer, and those are not to which no connection was made. Whoever comes meanwhile
        shares the question.
        """
        silent = [watched for watched in self._watched.values() if watched.is_silent]
        pending = {self._ask_patiently(watched) for watched in silent}
        while pending and not any(watched.is_live for watched in silent):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        return any(watched.is_live for watched in silent)

    async def run(self, watch: EndpointsWatch) -> NoReturn:
        """Follow the endpoints file and the replicas in it until cancelled."""
        try:
            while True:
                endpoints = watch.read_if_changed()
                if endpoints is not None:
                    self.adopt(endpoints)
                self.expire()
                self._ask_all()
                await asyncio.sleep(self._config.poll_every_s)
        finally:
            for watched in self._watched.values():
                watched.cancel()

    def _ask_all(self) -> None:
        for watched in self._watched.values():
            if watched.task is None or watched.task.done():
                watched.task = asyncio.create_task(self._ask(watched, self._config.timeout_s))

    def _ask_patiently(self, watched: "_Watched") -> "asyncio.Task[None]":
        if watched.patient_task is None or watched.patient_task.done():
            watched.patient_task = asyncio.create_task(self._ask(watched, _PATIENCE_S))
        return watched.patient_task

    async def _ask(self, watched: "_Watched", timeout_s: float) -> None:
        asked_at_s = self._clock.now_s()
        try:
            async with asyncio.timeout(timeout_s):
                snapshot = await ask(self._source, watched.endpoint, asked_at_s=asked_at_s)
        except (OSError, CollmError) as error:  # a timeout is an OSError
            watched.complain(error)
            return
        if asked_at_s <= watched.suspected_at_s:
            return  # it may have died since
        watched.has_complained = watched.is_new = False
        watched.answered_at_s, watched.heard_at_s = self._clock.now_s(), self._listen()
        self._table.put(snapshot)
        self._lost_names.pop(snapshot.replica_id, None)
        if not watched.is_live:
            watched.is_live = True
            self._tell(RegistryEvent(snapshot.replica_id, "back"))

    def _lose(self, watched: "_Watched", reason: str) -> None:
        if not watched.is_live:
            return
        replica_id = watched.endpoint.replica_id
        watched.is_live = False
        if (snapshot := self._table.get(replica_id)) is not None:
            self._lost_names[replica_id] = frozenset(snapshot.names)
        self._table.drop(replica_id)
        self._sent.forget(replica_id)
        _log.warning("replica %s is gone: %s", replica_id, reason)
        self._tell(RegistryEvent(replica_id, "gone"))

    def _silent_s(self, watched: "_Watched") -> float | None:
        return None if watched.heard_at_s is None else self._listen() - watched.heard_at_s

    def _listen(self) -> float:
        """Return for how long this process could hear answers: not while it stood still itself."""
        now_s, config = self._clock.now_s(), self._config
        passed_s, self._looked_at_s = now_s - self._looked_at_s, now_s
        self._listened_s += passed_s if passed_s <= config.dead_after_s else config.poll_every_s
        return self._listened_s

    def _tell(self, event: RegistryEvent) -> None:
        for listener in self._listeners:
            listener(event)

    def _member(self, watched: "_Watched") -> Member:
        return Member(
            endpoint=watched.endpoint,
            is_live=watched.is_live,
            silent_s=self._silent_s(watched),
            snapshot=self._table.get(watched.endpoint.replica_id),
        )


class _Watched:
    """What the registry keeps of one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.is_live = False
        self.is_new = True
        """Whether it has neither answered yet nor failed to in another way than by silence."""
        self.answered_at_s = -math.inf
        self.heard_at_s: float | None = None
        """The same in time that the registry listened."""
        self.suspected_at_s = -math.inf
        self.has_complained = False
        self.task: asyncio.Task[None] | None = None
        self.patient_task: asyncio.Task[None] | None = None

    @property
    def is_silent(self) -> bool:
        """Whether it has merely not answered lately, or not yet."""
        has_answered = self.answered_at_s > self.suspected_at_s
        return not self.is_live and (self.is_new or has_answered)

    def cancel(self) -> None:
        for task in (self.task, self.patient_task):
            if task is not None:
                task.cancel()

    def complain(self, error: Exception) -> None:
        """Log the first of a row of failures; silence of a known kind is said by its end."""
        self.is_new = self.is_new and isinstance(error, TimeoutError)
        if not self.has_complained:
            self.has_complained = True
            _log.info(
                "replica %s: no snapshot: %s",
                self.endpoint.replica_id,
                str(error) or type(error).__name__,
            )
