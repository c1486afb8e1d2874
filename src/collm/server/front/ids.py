"""Ids that say which replica made them: ``KIND-REPLICA-`` and 24 hexadecimal digits."""

import re

# A replica's name may hold hyphens itself; the digits at the end tell where it stops. Several
# prompts of one call are told apart by a number behind them.
_NAMED = re.compile(r"[a-z]+-(?P<replica>.+)-[0-9a-f]{24}(-\d+)?", re.DOTALL)


def replica_of(object_id: str) -> str | None:
    """Return the name of the replica that made an id, or ``None`` if it names none."""
    match = _NAMED.fullmatch(object_id)
    return None if match is None else match["replica"]
