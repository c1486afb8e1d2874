"""The journal of allocations: what was shared out, and what it was computed from.

It is for people, who read it with any SQLite client; the numbers go on where a front before ended.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from collm.store.database import Database
from collm.store.json_text import to_json

_KEPT = 100
"""Latest allocations that are kept: those of large clusters are large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRecord:
    """One allocation."""

    number: int
    """Counts from 1."""
    made_at_s: float
    """Wall-clock time, seconds since 1970."""
    content: Mapping[str, Any]
    """Inputs and outcome, as JSON has them."""


class AllocationJournal:
    """Owner of the allocations' rows. Any thread may use it."""

    def __init__(self, database: Database, *, now_s: Callable[[], float]) -> None:
        """Keep allocations in ``database``, dated by ``now_s`` (wall clock, seconds since 1970)."""
        self._database = database
        self._now_s = now_s

    def add(self, content: Mapping[str, Any]) -> AllocationRecord:
        """Keep an allocation, and no more than the latest hundred; return its record."""
        made_at_s = self._now_s()
        with self._database.transaction() as connection:
            number = connection.execute(
                "INSERT INTO allocations (made_at_s, content) VALUES (?, ?)",
                (made_at_s, to_json(content)),
            ).lastrowid
            assert number is not None
            connection.execute("DELETE FROM allocations WHERE number <= ?", (number - _KEPT,))
        return AllocationRecord(number=number, made_at_s=made_at_s, content=content)
