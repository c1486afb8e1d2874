"""Answers given lately, so that feedback can name one by its id."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from collm.errors import UnknownObjectError
from collm.store.database import Database
from collm.store.json_text import to_json
from collm.store.pages import ObjectTable
from collm.types import VersionId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """What one request asked of an adapter, and got."""

    response_id: str
    model: str
    """The name that the request used."""
    adapter: str
    """The adapter that answered."""
    version: VersionId
    messages: tuple[Mapping[str, Any], ...]
    """The prompt, as chat messages; none when it was wiped."""
    answers: tuple[str, ...]
    """One text per choice; none when they were wiped."""
    created_at_s: float
    """Wall-clock time, seconds since 1970."""

    @property
    def is_wiped(self) -> bool:
        """Whether its text is gone, because feedback on it was deleted."""
        return not self.answers


class ResponseStore:
    """Owner of the answers given lately. Any thread may use it."""

    def __init__(self, database: Database, *, now_s: Callable[[], float]) -> None:
        """Keep answers in ``database``; their age is told by ``now_s`` (wall clock)."""
        self._database = database
        self._now_s = now_s
        self._table = ObjectTable(
            name="responses", key="response_id", noun="response", build=_from_row
        )

    def add_many(self, responses: Iterable[StoredResponse]) -> None:
        """Keep answers in one transaction; one whose id is known already is left as it is."""
        rows = [
            (
                response.response_id,
                response.model,
                response.adapter,
                response.version,
                to_json(response.messages),
                to_json(response.answers),
                response.created_at_s,
            )
            for response in responses
        ]
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT INTO responses (response_id, model, adapter, version, messages, answers, "
                "created_at_s) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                rows,
            )

    def get(self, response_id: str) -> StoredResponse:
        """Return one answer; raises ``UnknownObjectError`` if it is unknown or too old."""
        try:
            return self._table.find(self._database.query, response_id)
        except UnknownObjectError as error:
            raise UnknownObjectError(
                f"{error}; kept are the latest complete answers by adapters, and none by the base "
                "model, which does not learn"
            ) from None

    def prune(self, max_responses: int, older_than_s: float) -> None:
        """Forget all but the latest ``max_responses`` answers, and those older than an age."""
        with self._database.transaction() as connection:
            connection.execute(
                "DELETE FROM responses WHERE created_at_s < ?", (self._now_s() - older_than_s,)
            )
            connection.execute(
                "DELETE FROM responses WHERE id <= "
                "(SELECT id FROM responses ORDER BY id DESC LIMIT 1 OFFSET ?)",
                (max_responses,),
            )


def wipe(connection: sqlite3.Connection, response_id: str) -> None:
    """Forget an answer's prompt and texts, not that it was given, within a transaction."""
    connection.execute(
        "UPDATE responses SET messages = '[]', answers = '[]' WHERE response_id = ?",
        (response_id,),
    )


def _from_row(row: sqlite3.Row) -> StoredResponse:
    return StoredResponse(
        response_id=row["response_id"],
        model=row["model"],
        adapter=row["adapter"],
        version=row["version"],
        messages=tuple(json.loads(row["messages"])),
        answers=tuple(json.loads(row["answers"])),
        created_at_s=row["created_at_s"],
    )
