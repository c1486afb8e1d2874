"""Which replica a thing goes to that has no id yet: the one that a client named, or a free one."""

from urllib.parse import parse_qsl, urlencode

from fastapi import Request

from collm.errors import RequestError
from collm.server.front.errors import NoReplicaError
from collm.server.front.front import Front
from collm.types import ReplicaSnapshot

REPLICA = "replica"
"""Parameter with which a client names a replica."""


def split_query(http: Request) -> tuple[str | None, str]:
    """Return the replica that a call's URL names, if any, and the query without it."""
    pairs = parse_qsl(http.url.query, keep_blank_values=True)
    named = [value for name, value in pairs if name == REPLICA]
    rest = urlencode([pair for pair in pairs if pair[0] != REPLICA])
    return (named[-1] if named else None), (rest if named else http.url.query)


async def place(front: Front, named: str | None) -> str:
    """Return the replica to use.

    Raises:
        RequestError: The client named one that does not exist.
        NoReplicaError: None is alive.
    """
    if named is not None:
        check_replica(front, named)
        return named
    if not _accepting(front):
        await front.registry.ask_silent()
    live = _accepting(front)
    if not live:
        raise NoReplicaError("No replica can answer now; try again later.")
    return min(live, key=_load).replica_id


def check_replica(front: Front, named: str) -> None:
    """Raise ``RequestError`` unless there is a replica of this name."""
    names = front.registry.liveness()
    if named not in names:
        raise RequestError(
            f"'{REPLICA}': there is no '{named[:64]}'; allowed: {', '.join(names)}.",
            param=REPLICA,
            code="invalid_value",
        )


def _accepting(front: Front) -> list[ReplicaSnapshot]:
    return [snapshot for snapshot in front.registry.table.values() if not snapshot.is_draining]


def _load(snapshot: ReplicaSnapshot) -> tuple[int, int, str]:
    """Order replicas by how much they have to do."""
    num_sequences = snapshot.num_running + snapshot.num_waiting
    return num_sequences, snapshot.queued_prefill_tokens, snapshot.replica_id
