"""The latest snapshot of every live replica, indexed as the router asks for them."""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence

from collm.cluster.prediction import Standing, stand
from collm.types import ReplicaSnapshot

ANY = ""
"""The pool of all replicas that accept requests, whatever they serve; no model has this name."""


class Pool:
    """The accepting replicas that serve one name; empty pools are not kept."""

    def __init__(self) -> None:
        self._members = _Ids()
        self._served: dict[str, tuple[str, float]] = {}  # each replica's version and its quality
        self._versions: dict[str, _Version] = {}
        self._ranking: list[tuple[float, str]] = []  # (-quality, version)

    def __contains__(self, replica_id: str) -> bool:
        return replica_id in self._members

    @property
    def ids(self) -> Sequence[str]:
        """Every replica, in no order that means anything."""
        return self._members.ids

    def best(self, count: int, lot: Callable[[], float]) -> list[str]:
        """Return the ``count`` replicas of the best versions; nobody when all serve the same.

        A version is as good as the best quality that any replica measured of it. Who of those that
        serve the same one are returned is decided by ``lot``, which draws from [0, 1).
        """
        found: list[str] = []
        if len(self._ranking) == 1:
            return found
        for _, version in self._ranking:
            ids, num_missing = self._versions[version].members.ids, count - len(found)
            if len(ids) > num_missing:
                start = int(lot() * len(ids))
                return found + [ids[(start + index) % len(ids)] for index in range(num_missing)]
            found += ids
            if len(found) == count:
                break
        return found

    def put(self, replica_id: str, version: str, quality: float) -> None:
        """Add a replica, or change what it serves and how good it measured that to be."""
        served = version, quality
        known = self._served.get(replica_id)
        if known == served:
            return
        if known is None:
            self._members.add(replica_id)
        else:
            self._withdraw(replica_id)
        self._served[replica_id] = served
        group = self._versions.get(version)
        if group is None:
            group = self._versions[version] = _Version()
        else:
            self._unrank(version, group)
        group.put(replica_id, quality)
        insort(self._ranking, (-group.quality, version))

    def drop(self, replica_id: str) -> None:
        """Take a replica out."""
        self._withdraw(replica_id)
        self._members.drop(replica_id)

    def _withdraw(self, replica_id: str) -> None:
        version, _ = self._served.pop(replica_id)
        group = self._versions[version]
        self._unrank(version, group)
        group.drop(replica_id)
        if group.members.ids:
            insort(self._ranking, (-group.quality, version))
        else:
            del self._versions[version]

    def _unrank(self, version: str, group: "_Version") -> None:
        del self._ranking[bisect_left(self._ranking, (-group.quality, version))]


class _Version:
    """Who serves a version, and how good it is."""

    def __init__(self) -> None:
        self.members = _Ids()
        self.quality = -math.inf
        self._qualities: dict[str, float] = {}

    def put(self, replica_id: str, quality: float) -> None:
        self.members.add(replica_id)
        self._qualities[replica_id] = quality
        self.quality = max(self.quality, quality)

    def drop(self, replica_id: str) -> None:
        self.members.drop(replica_id)
        if self._qualities.pop(replica_id) == self.quality:
            self.quality = max(self._qualities.values(), default=-math.inf)


class _Ids:
    """A set in a list, to draw from."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._places: dict[str, int] = {}

    def __contains__(self, replica_id: str) -> bool:
        return replica_id in self._places

    def add(self, replica_id: str) -> None:
        self._places[replica_id] = len(self.ids)
        self.ids.append(replica_id)

    def drop(self, replica_id: str) -> None:
        place, last_id = self._places.pop(replica_id), self.ids.pop()
        if last_id != replica_id:
            self.ids[place] = last_id
            self._places[last_id] = place


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
        before = self._standings.get(replica_id)
        if before is not None and _serves_the_same(before.snapshot, snapshot):
            self._standings[replica_id] = stand(snapshot, before.adapters)
            return
        names, known = _pool_names(snapshot), self._names.get(replica_id)
        if names != known:
            for name in (known or {}).keys() - names.keys():
                self._leave(name, replica_id)
            self._names[replica_id] = names
        self._standings[replica_id] = stand(snapshot)
        for name in names:
            pool = self._pools.get(name)
            if pool is None:
                pool = self._pools[name] = Pool()
            # Of the base model, and of a version by its label, everybody serves the same.
            version = snapshot.active.get(name, "")
            pool.put(replica_id, version, snapshot.quality.get(name, 0.0))

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


def _serves_the_same(before: ReplicaSnapshot, now: ReplicaSnapshot) -> bool:
    """Whether two snapshots of a replica say the same of all that pools are made from."""
    return (
        now.active == before.active
        and now.quality == before.quality
        and now.quality_noise == before.quality_noise
        and now.names == before.names
        and now.is_draining == before.is_draining
    )


def _pool_names(snapshot: ReplicaSnapshot) -> dict[str, None]:
    return {} if snapshot.is_draining else dict.fromkeys((ANY, *snapshot.names))
