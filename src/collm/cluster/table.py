"""The latest snapshot of every live replica, indexed as the router asks for them."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence

from collm.cluster.prediction import Standing, stand
from collm.types import ReplicaSnapshot

ANY = ""
"""The pool of all replicas that accept requests, whatever they serve; no model has this name."""


class Pool:
    """The accepting replicas that serve one name; empty pools are not kept."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._places: dict[str, int] = {}
        self._qualities: dict[str, float] = {}
        self._ranking: list[tuple[float, str]] = []

    def __contains__(self, replica_id: str) -> bool:
        return replica_id in self._places

    @property
    def ids(self) -> Sequence[str]:
        """Every replica, in no order that means anything."""
        return self._ids

    def best(self, count: int) -> list[str]:
        """Return the ``count`` replicas of the highest quality, by id where equal."""
        return [replica_id for _, replica_id in self._ranking[:count]]

    def put(self, replica_id: str, quality: float) -> None:
        """Add a replica, or change its quality."""
        known = self._qualities.get(replica_id)
        if known == quality:
            return
        if known is None:
            self._places[replica_id] = len(self._ids)
            self._ids.append(replica_id)
        else:
            self._unrank(replica_id)
        self._qualities[replica_id] = quality
        insort(self._ranking, (-quality, replica_id))

    def drop(self, replica_id: str) -> None:
        """Take a replica out."""
        self._unrank(replica_id)
        del self._qualities[replica_id]
        place, last_id = self._places.pop(replica_id), self._ids.pop()
        if last_id != replica_id:
            self._ids[place] = last_id
            self._places[last_id] = place

    def _unrank(self, replica_id: str) -> None:
        key = (-self._qualities[replica_id], replica_id)
        del self._ranking[bisect_left(self._ranking, key)]


class ReplicaTable(Mapping[str, ReplicaSnapshot]):
    """Snapshots by replica id.

    The work is done when a snapshot arrives, so that a request costs the same at any size.
    """

    def __init__(self, snapshots: Sequence[ReplicaSnapshot] = ()) -> None:
        self._standings: dict[str, Standing] = {}
        self._names: dict[str, dict[str, None]] = {}  # the pools that each replica is in
        self._pools: dict[str, Pool] = {}
        for snapshot in snapshots:
            self.put(snapshot)

    def __getitem__(self, replica_id: str) -> ReplicaSnapshot:
        return self._standings[replica_id].snapshot

    def __iter__(self) -> Iterator[str]:
        return iter(self._standings)

    def __len__(self) -> int:
        return len(self._standings)

    def pool(self, model: str) -> Pool | None:
        """Return the accepting replicas that serve a name, ``ANY`` for all; ``None`` if none."""
        return self._pools.get(model)

    def standing(self, replica_id: str) -> Standing:
        """Return what predictions need of a replica; ``KeyError`` if it is not here."""
        return self._standings[replica_id]

    def put(self, snapshot: ReplicaSnapshot) -> None:
        """Take in a replica's new snapshot."""
        replica_id = snapshot.replica_id
        names = _pool_names(snapshot)
        for name in self._names.get(replica_id, {}).keys() - names.keys():
            self._leave(name, replica_id)
        self._standings[replica_id] = stand(snapshot)
        self._names[replica_id] = names
        for name in names:
            pool = self._pools.get(name)
            if pool is None:
                pool = self._pools[name] = Pool()
            pool.put(replica_id, snapshot.quality.get(name, 0.0))

    def drop(self, replica_id: str) -> None:
        """Forget a replica, if it is known."""
        if self._standings.pop(replica_id, None) is not None:
            for name in self._names.pop(replica_id):
                self._leave(name, replica_id)

    def _leave(self, name: str, replica_id: str) -> None:
        pool = self._pools[name]
        pool.drop(replica_id)
        if not pool.ids:
            del self._pools[name]


def _pool_names(snapshot: ReplicaSnapshot) -> dict[str, None]:
    return {} if snapshot.is_draining else dict.fromkeys((ANY, *snapshot.names))
