"""How much each adapter was asked for lately, replica by replica."""

from collections import OrderedDict

_HALF_LIFE_S = 300.0
"""A request counts half after this time: a few rounds."""
_MAX_ENTRIES = 10_000
"""Adapters times replicas; names come from clients, who may make them up."""


class DemandBook:
    """Requests per adapter and replica, the older the less. One event loop owns it."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        """With the time that each is as of, the one asked for least recently first."""
        self._latest_s = 0.0

    def add(self, model: str, replica_id: str, now_s: float) -> None:
        """Count a request for ``model``, an adapter or a version of one, at a replica."""
        self._latest_s = now_s
        key = (model.partition("@")[0], replica_id)
        self._counts[key] = (self.recent(*key) + 1.0, now_s)
        self._counts.move_to_end(key)
        if len(self._counts) > _MAX_ENTRIES:
            self._counts.popitem(last=False)

    def recent(self, adapter: str, replica_id: str) -> float:
        """Return the requests for an adapter at a replica, as of the latest request to any."""
        count, at_s = self._counts.get((adapter, replica_id), (0.0, 0.0))
        return float(count * 0.5 ** ((self._latest_s - at_s) / _HALF_LIFE_S))
