"""What the front sent where: corrects snapshots, and says where caches probably are."""

from collections.abc import Mapping, Sequence

from collm.cluster.affinity import DEFAULT_MAX_ENTRIES, Affinity, Cached
from collm.cluster.demand import DemandBook
from collm.cluster.lanes import NOTHING_SENT, Lane, SentLoad, Ticket
from collm.cluster.routes import Choice, RouteRequest


class Sent:
    """The front's own book of requests, a lane per replica.

    A request's life is ``add``, then ``started`` with its first byte, then ``finished`` in any
    case. One event loop owns it.

    Args:
        max_entries: Most prefixes, and most sessions, that are remembered.
    """

    def __init__(self, max_entries: int = DEFAULT_MAX_ENTRIES) -> None:
        self._lanes: dict[str, Lane] = {}
        self._affinity = Affinity(max_entries)
        self._demand = DemandBook()

    def add(self, request: RouteRequest, choice: Choice, now_s: float) -> Ticket:
        """Note that a request is sent to its choice."""
        self._affinity.add(request, choice.replica_id, choice.version)
        self._demand.add(request.model, choice.replica_id, now_s)
        lane = self._lanes.get(choice.replica_id)
        if lane is None:
            lane = self._lanes[choice.replica_id] = Lane()
        return lane.add(request, choice, now_s)

    def started(self, ticket: Ticket, now_s: float) -> None:
        """Note a request's first byte; what it took corrects the next predictions."""
        ticket.lane.start(ticket, now_s)

    def finished(self, ticket: Ticket, now_s: float) -> None:
        """Note that a request ended, however it did; a second call changes nothing."""
        ticket.lane.finish(ticket, now_s)

    def forget(self, replica_id: str) -> None:
        """Start a new lane for a replica that died; tickets of the old one may still come back."""
        self._affinity.forget(replica_id)
        self._lanes.pop(replica_id, None)

    def load(self, replica_id: str, taken_at_s: float, now_s: float) -> SentLoad:
        """Return what to add to a replica's snapshot that was taken at ``taken_at_s``."""
        lane = self._lanes.get(replica_id)
        return NOTHING_SENT if lane is None else lane.load(taken_at_s, now_s)

    def num_open(self, replica_id: str) -> int:
        """Return how many requests are open at a replica."""
        lane = self._lanes.get(replica_id)
        return 0 if lane is None else lane.num_open

    def cached(self, request: RouteRequest) -> Cached:
        """Return the longest beginning of a request's prompt that was sent before."""
        return self._affinity.cached(request)

    def session_home(self, request: RouteRequest) -> str | None:
        """Return the replica that a request's conversation was sent to last."""
        return self._affinity.session_home(request)

    def latest(self, model: str) -> str | None:
        """Return the replica that a request for ``model`` was sent to last."""
        return self._affinity.latest(model)

    def excesses(
        self, adapter: str, replica_ids: Sequence[str], shares: Mapping[str, float]
    ) -> list[float]:
        """Return how far each replica is above its share of an adapter's requests, from -1 to 1."""
        return self._demand.excesses(adapter, replica_ids, shares)

    def demand(self, adapter: str, replica_id: str) -> float:
        """Return the requests for an adapter that a replica was sent lately, the older the less."""
        return self._demand.recent(adapter, replica_id)
