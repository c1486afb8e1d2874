"""Which version of each adapter is active, and why: one row per decision."""

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from collm.errors import UnknownAdapterError
from collm.store.database import Database
from collm.store.json_text import to_json
from collm.store.names import check_name
from collm.types import BASE, VersionId


class DecisionKind(StrEnum):
    """What was decided about a version."""

    PROMOTION = "promotion"
    ROLLBACK = "rollback"
    REFUSAL = "refusal"
    UNLOAD = "unload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision, with what it was based on."""

    decided_at_s: float
    """Wall-clock time, seconds since 1970."""
    kind: DecisionKind
    adapter: str
    version: VersionId | None
    """The version promoted, returned to (``BASE`` for the bare base model), or refused; ``None``
    for a candidate without a name, and when an adapter is unloaded."""
    previous: VersionId | None
    """The version that was active when it was decided."""
    reason: str
    numbers: Mapping[str, Any]
    """Figures by name, as JSON has them; NaN and infinities as ``"nan"``, ``"inf"``, ``"-inf"``."""


class DecisionStore:
    """Owner of the active and held versions' names. Any thread may read; writes take turns.

    A change and its decision are one transaction: a row explains every active version.
    """

    def __init__(self, database: Database, *, now_s: Callable[[], float]) -> None:
        """Keep decisions in ``database``, dated by ``now_s`` (wall clock, seconds since 1970)."""
        self._database = database
        self._now_s = now_s

    def active(self) -> dict[str, VersionId]:
        """Return the active version of each adapter that has one."""
        rows = self._database.query(
            "SELECT name, active FROM adapters WHERE active IS NOT NULL ORDER BY name"
        )
        return {row["name"]: row["active"] for row in rows}

    def held(self) -> dict[str, VersionId]:
        """Return, of each adapter that has one, the version that a rollback returns to."""
        rows = self._database.query(
            "SELECT name, held FROM adapters WHERE held IS NOT NULL ORDER BY name"
        )
        return {row["name"]: row["held"] for row in rows}

    def first(self) -> dict[str, VersionId]:
        """Return, of each adapter, the version that was last promoted while none was active."""
        rows = self._database.query(
            "SELECT adapter, version, max(id) FROM decisions "
            "WHERE kind = ? AND previous IS NULL GROUP BY adapter",
            (DecisionKind.PROMOTION,),
        )
        return {row["adapter"]: row["version"] for row in rows}

    def taken_back(self) -> tuple[str, ...]:
        """Return the adapters whose first version was taken back, and that have none since."""
        return tuple(
            adapter
            for adapter, decision in self.standing().items()
            if decision.kind is DecisionKind.ROLLBACK and decision.version == BASE
        )

    def standing(self) -> dict[str, Decision]:
        """Return, of each adapter, the decision by which it is served as it is, by name."""
        rows = self._database.query(
            "SELECT *, max(id) FROM decisions WHERE kind != ? GROUP BY adapter ORDER BY adapter",
            (DecisionKind.REFUSAL,),
        )
        return {row["adapter"]: _from_row(row) for row in rows}

    def history(self, adapter: str, limit: int | None = None) -> tuple[Decision, ...]:
        """Return the decisions about an adapter, or only the latest ``limit``; oldest first."""
        rows = self._database.query(
            "SELECT * FROM decisions WHERE adapter = ? ORDER BY id DESC LIMIT ?",
            (adapter, -1 if limit is None else limit),
        )
        return tuple(_from_row(row) for row in reversed(rows))

    def promote(self, version: VersionId, reason: str, numbers: Mapping[str, Any]) -> None:
        """Make a version the active one and hold the one before; no effect if it is active already.

        Args:
            version: A published version.
            reason: Why, for people.
            numbers: What the decision was based on; whatever JSON can hold, and non-finite floats.

        Raises:
            UnknownAdapterError: The version is not published.
        """
        with self._database.transaction() as connection:
            adapter = _adapter_of(connection, version)
            active, _ = _pointers(connection, adapter)
            if active != version:
                _point(connection, adapter, active=version, held=active)
                kind = DecisionKind.PROMOTION
                self._add(connection, kind, adapter, version, active, reason, numbers)

    def rollback(self, version: VersionId, reason: str, numbers: Mapping[str, Any]) -> None:
        """Make an earlier version the active one again; nothing is held afterwards.

        Raises:
            UnknownAdapterError: The version is not published.
        """
        with self._database.transaction() as connection:
            adapter = _adapter_of(connection, version)
            active, _ = _pointers(connection, adapter)
            _point(connection, adapter, active=version, held=None)
            kind = DecisionKind.ROLLBACK
            self._add(connection, kind, adapter, version, active, reason, numbers)

    def return_to_base(self, adapter: str, reason: str, numbers: Mapping[str, Any]) -> None:
        """Make no version of an adapter active and hold none: a rollback of its first one."""
        with self._database.transaction() as connection:
            active, _ = _pointers(connection, adapter)
            _point(connection, adapter, active=None, held=None)
            kind = DecisionKind.ROLLBACK
            self._add(connection, kind, adapter, BASE, active, reason, numbers)

    def unload(self, adapter: str, reason: str) -> None:
        """Make no version of an adapter active and hold none; no effect if none is active.

        Its versions stay published, so that one may be promoted again.
        """
        with self._database.transaction() as connection:
            active, _ = _pointers(connection, adapter)
            if active is None:
                return
            _point(connection, adapter, active=None, held=None)
            kind = DecisionKind.UNLOAD
            self._add(connection, kind, adapter, None, active, reason, {})

    def refuse(
        self, adapter: str, version: VersionId | None, reason: str, numbers: Mapping[str, Any]
    ) -> None:
        """Record that a candidate, which may have no name, was not promoted."""
        check_name("adapter name", adapter)
        with self._database.transaction() as connection:
            active, _ = _pointers(connection, adapter)
            kind = DecisionKind.REFUSAL
            self._add(connection, kind, adapter, version, active, reason, numbers)

    def prune(self, max_refusals: int) -> None:
        """Drop the oldest refusals beyond so many of each adapter; all else is kept for ever.

        Whoever learns for ever is refused for ever, and only late refusals explain anything.
        """
        with self._database.transaction() as connection:
            connection.execute(
                "DELETE FROM decisions WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER "
                "(PARTITION BY adapter ORDER BY id DESC) AS place FROM decisions WHERE kind = ?) "
                "WHERE place > ?)",
                (DecisionKind.REFUSAL, max_refusals),
            )

    def _add(
        self,
        connection: sqlite3.Connection,
        kind: DecisionKind,
        adapter: str,
        version: VersionId | None,
        previous: VersionId | None,
        reason: str,
        numbers: Mapping[str, Any],
    ) -> None:
        text = to_json(numbers)
        connection.execute(
            "INSERT INTO decisions (decided_at_s, kind, adapter, version, previous, reason, "
            "numbers) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self._now_s(), kind, adapter, version, previous, reason, text),
        )


def _adapter_of(connection: sqlite3.Connection, version: VersionId) -> str:
    row = connection.execute(
        "SELECT adapter FROM versions WHERE version = ?", (version,)
    ).fetchone()
    if row is None:
        raise UnknownAdapterError(f"version {version!r} is not published")
    return str(row["adapter"])


def _pointers(
    connection: sqlite3.Connection, adapter: str
) -> tuple[VersionId | None, VersionId | None]:
    """Return the active and the held version."""
    row = connection.execute(
        "SELECT active, held FROM adapters WHERE name = ?", (adapter,)
    ).fetchone()
    return (row["active"], row["held"]) if row else (None, None)


def _point(
    connection: sqlite3.Connection,
    adapter: str,
    *,
    active: VersionId | None,
    held: VersionId | None,
) -> None:
    connection.execute(
        "UPDATE adapters SET active = ?, held = ? WHERE name = ?", (active, held, adapter)
    )


def _from_row(row: sqlite3.Row) -> Decision:
    return Decision(
        decided_at_s=row["decided_at_s"],
        kind=DecisionKind(row["kind"]),
        adapter=row["adapter"],
        version=row["version"],
        previous=row["previous"],
        reason=row["reason"],
        numbers=json.loads(row["numbers"]),
    )
