"""How much each adapter was asked for lately, replica by replica."""

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

_HALF_LIFE_S = 300.0
"""A request counts half after this time: a few rounds."""
_MAX_ENTRIES = 10_000
"""Adapters times replicas; names come from clients, who may make them up."""

_K = TypeVar("_K", bound=Hashable)


class DemandBook:
    """Requests per adapter and replica, the older the less. One event loop owns it."""

    def __init__(self) -> None:
        self._by_replica: _Counts[tuple[str, str]] = _Counts()
        self._by_adapter: _Counts[str] = _Counts()
        self._latest_s = 0.0

    def add(self, model: str, replica_id: str, now_s: float) -> None:
        """Count a request for ``model``, an adapter or a version of one, at a replica."""
        self._latest_s = now_s
        adapter = model.partition("@")[0]
        self._by_replica.add((adapter, replica_id), now_s)
        self._by_adapter.add(adapter, now_s)

    def recent(self, adapter: str, replica_id: str) -> float:
        """Return the requests for an adapter at a replica, as of the latest request to any."""
        return self._by_replica.at((adapter, replica_id), self._latest_s)

    def excesses(
        self, adapter: str, replica_ids: Sequence[str], shares: Mapping[str, float]
    ) -> list[float]:
        """Return how far each replica is above its share of an adapter's requests, from -1 to 1.

        It is relative to what the share comes to, give or take a request. A replica without a share
        should get none. Runs for every request, over all its candidates.
        """
        latest_s = self._latest_s
        whole, at = self._by_adapter.at(adapter, latest_s), self._by_replica.at
        found = []
        for replica_id in replica_ids:
            due = shares.get(replica_id, 0.0) * whole
            excess = (at((adapter, replica_id), latest_s) - due) / (due + 1.0)
            found.append(excess if excess < 1.0 else 1.0)
        return found


class _Counts(Generic[_K]):
    """Counts that fade, the ones added to least recently given up first."""

    def __init__(self) -> None:
        self._counts: OrderedDict[_K, tuple[float, float]] = OrderedDict()
        """With the time that each is as of."""

    def add(self, key: _K, now_s: float) -> None:
        self._counts[key] = (self.at(key, now_s) + 1.0, now_s)
        self._counts.move_to_end(key)
        if len(self._counts) > _MAX_ENTRIES:
            self._counts.popitem(last=False)

    def at(self, key: _K, now_s: float) -> float:
        found = self._counts.get(key)
        if found is None:
            return 0.0
        count, at_s = found
        return float(count * 0.5 ** ((now_s - at_s) / _HALF_LIFE_S))
