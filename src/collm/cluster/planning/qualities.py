"""How good what each replica serves is, as far as anybody measured it."""

from collections.abc import Mapping
from statistics import fmean

from collm.types import ReplicaSnapshot, VersionId

_UNKNOWN = 1.0
"""Where nobody measured anything."""
_LEAST_QUALITY = 1e-3
"""That of a loss of a thousand nats per token."""
_LEAST_NOISE = 1e-3


class Qualities:
    """Q by replica and adapter.

    One version is as good wherever it is served, so what replicas measured of it is pooled, each
    by how sure it is: otherwise traffic would follow noise. Means are taken of 1 / Q, which is a
    loss: a mean of Q by 1 / noise² would go by whoever found it worst, as the noise of a quality
    grows with it. What nobody measured counts as the mean of the adapter's other versions, or of
    all adapters.

    Args:
        live: Snapshots by replica.
    """

    def __init__(self, live: Mapping[str, ReplicaSnapshot]) -> None:
        self._live = live
        sums: dict[tuple[str, VersionId | None], tuple[float, float]] = {}
        for snapshot in live.values():
            for adapter, stated in snapshot.quality.items():
                key = adapter, snapshot.active.get(adapter)
                value = max(stated, _LEAST_QUALITY)
                noise = max(snapshot.quality_noise.get(adapter, 0.0), _LEAST_NOISE)
                weight = (value / noise) ** 2
                total, losses = sums.get(key, (0.0, 0.0))
                sums[key] = total + weight, losses + weight / value
        self._by_version = {key: total / losses for key, (total, losses) in sums.items()}
        by_adapter: dict[str, list[float]] = {}
        for (adapter, _), value in self._by_version.items():
            by_adapter.setdefault(adapter, []).append(value)
        self._by_adapter = {adapter: fmean(values) for adapter, values in by_adapter.items()}
        self._mean = fmean(self._by_adapter.values()) if self._by_adapter else _UNKNOWN

    def of(self, replica_id: str, adapter: str) -> float:
        """Return the quality of what a replica serves under an adapter's name, above 0."""
        version = self._live[replica_id].active.get(adapter)
        found = self._by_version.get((adapter, version))
        return self._by_adapter.get(adapter, self._mean) if found is None else found
