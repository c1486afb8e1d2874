"""Objects that users name by an id and list page by page, newest first."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from collm.errors import UnknownObjectError
from collm.store.database import Database

T = TypeVar("T")
Order = Literal["asc", "desc"]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list."""

    items: tuple[T, ...]
    has_more: bool
    """Whether the list goes on after the last item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectTable(Generic[T]):
    """How the rows of one table become the objects that users name.

    The table's ``id`` column counts up in order of creation and is never used again.
    """

    name: str
    key: str
    """Column of the id that users know."""
    noun: str
    """What an object is called in messages."""
    build: Callable[[sqlite3.Row], T]
    visible: str = "TRUE"
    """SQL condition of the rows that are objects; a list may go on after one that was deleted."""

    def find(
        self, read: Callable[[str, Sequence[Any]], Iterable[sqlite3.Row]], object_id: str
    ) -> T:
        """Return one object.

        Args:
            read: ``Database.query``, or ``execute`` of a connection within its transaction.
            object_id: As users know it.

        Raises:
            UnknownObjectError: There is no such object.
        """
        sql = f"SELECT * FROM {self.name} WHERE {self.key} = ? AND {self.visible}"
        for row in read(sql, (object_id,)):
            return self.build(row)
        raise UnknownObjectError(f"{self.noun} {object_id!r} does not exist")

    def page(
        self,
        database: Database,
        condition: str,
        parameters: Sequence[Any],
        *,
        after: str | None,
        limit: int,
        order: Order = "desc",
    ) -> Page[T]:
        """Return the next ``limit`` objects that meet an SQL condition.

        Raises:
            UnknownObjectError: There is no row of the object ``after``.
        """
        assert limit > 0, limit
        start = None if after is None else self._position(database, after)
        beyond = "<" if order == "desc" else ">"
        rows = database.query(
            f"SELECT * FROM {self.name} WHERE {self.visible} AND ({condition}) "
            f"AND (? IS NULL OR id {beyond} ?) ORDER BY id {order} LIMIT ?",
            (*parameters, start, start, limit + 1),
        )
        return Page(tuple(self.build(row) for row in rows[:limit]), len(rows) > limit)

    def _position(self, database: Database, object_id: str) -> int:
        for row in database.query(f"SELECT id FROM {self.name} WHERE {self.key} = ?", (object_id,)):
            return int(row["id"])
        raise UnknownObjectError(f"{self.noun} {object_id!r} to list after does not exist")


def insert(connection: sqlite3.Connection, table: str, values: Mapping[str, Any]) -> None:
    """Add a row to a table, by its columns' names."""
    columns, marks = ", ".join(values), ", ".join("?" for _ in values)
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(values.values()))
