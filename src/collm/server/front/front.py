"""What every route of one front shares."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fastapi import Request

from collm.clock import Clock
from collm.cluster.registry import Registry, RegistryEvent
from collm.metrics.front import FrontMetrics
from collm.server.config import ServerConfig
from collm.server.front.backends import FrontBackends
from collm.server.front.calls import Call
from collm.server.front.errors import NoReplicaError, NotReachedError
from collm.server.front.pool import ConnectionPool, Exchange


@dataclass(slots=True, kw_only=True)
class Front:
    """What the routes act on, the HTTP settings, and the calls under way."""

    backends: FrontBackends
    config: ServerConfig
    pool: ConnectionPool = field(init=False)
    """Connections to the replicas."""
    num_open: int = 0
    """Answers under way."""
    is_ending: bool = False
    """Whether answers are ended because the front stops."""

    def __post_init__(self) -> None:
        self.pool = ConnectionPool(self.backends.clock)
        self.registry.subscribe(self._note)
        for member in self.registry.members():
            if member.is_live:
                self._note(RegistryEvent(member.endpoint.replica_id, "back"))

    @property
    def clock(self) -> Clock:
        """The clock of the snapshots."""
        return self.backends.clock

    @property
    def metrics(self) -> FrontMetrics:
        """What is counted here."""
        return self.backends.metrics

    @property
    def registry(self) -> Registry:
        """The replicas there are."""
        return self.backends.registry

    @contextmanager
    def open_call(self) -> Iterator[None]:
        """Count an answer as under way."""
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1

    async def start(self, replica_id: str, call: Call) -> Exchange:
        """Send a call to a replica and wait for the head of its answer.

        Raises:
            NoReplicaError: It is not there, as it is being started again, or none of the cluster.
            NotReachedError: It cannot be connected to, and gets no requests until it answers again.
            UpstreamError: It went before it answered.
        """
        member = self.registry.member(replica_id)
        if member is None:
            raise NoReplicaError(f"The replica '{replica_id}' is not there now; try again later.")
        try:
            return await self.pool.start(member.endpoint.url, call)
        except NotReachedError:
            self.registry.suspect(replica_id)
            raise

    def _note(self, event: RegistryEvent) -> None:
        member = self.registry.member(event.replica_id)
        if event.kind == "back" and member is not None:
            self.metrics.replica_answers(event.replica_id, member.endpoint.started_at_s)

    def end_open(self) -> None:
        """End every answer under way, each with words that say why."""
        self.is_ending = True
        self.pool.cut_all()


def front_of(request: Request) -> Front:
    """Return the front that the request's app was made for."""
    front = request.app.state.front
    assert isinstance(front, Front)
    return front
