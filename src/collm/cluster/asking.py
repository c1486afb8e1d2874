"""Asking a replica how it stands, and what counts as an answer."""

from typing import Protocol

from collm.cluster.endpoints import Endpoint
from collm.cluster.snapshot_json import from_json
from collm.errors import DataError, UnreachableError
from collm.types import ReplicaSnapshot

_STANDS_STILL_S = 10.0
"""A replica answers from another thread than computes. When this one has not looked up for so long,
what the other says is no answer: the longest that it does without is a fraction of a second, and
some seconds where the machine has far too much to do."""


class SnapshotSource(Protocol):
    """Asks replicas how they stand."""

    async def fetch(self, endpoint: Endpoint) -> object:
        """Return the parsed JSON of a replica's state; ``OSError`` or ``CollmError`` if none."""
        ...


async def ask(source: SnapshotSource, endpoint: Endpoint, *, asked_at_s: float) -> ReplicaSnapshot:
    """Return how a replica stands; the caller bounds the time that it may take.

    Args:
        source: Asks it.
        endpoint: Where it listens.
        asked_at_s: The present, on the asker's clock.

    Raises:
        OSError: There is no connection.
        CollmError: It is none: malformed, another replica's, or of one whose step loop stands
            still.
    """
    value = await source.fetch(endpoint)
    snapshot = from_json(value, url=endpoint.url, taken_at_s=asked_at_s)
    if snapshot.replica_id != endpoint.replica_id:
        raise DataError(f"it says that it is {snapshot.replica_id!r}")
    if snapshot.age_s > _STANDS_STILL_S:
        raise UnreachableError(f"its step loop has stood still for {snapshot.age_s:.0f} s")
    return snapshot
