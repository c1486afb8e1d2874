"""Feedback on answers, which becomes training samples.

The same text is a sample of an adapter once; of the ratings of a choice the latest counts. Deleted
feedback leaves an empty row with the digest of its text, so that the text is refused when it comes
again, as long as it is among an adapter's latest such rows; what retention drops may come again.
"""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collm.errors import StateError
from collm.store.database import Database
from collm.store.json_text import to_json
from collm.store.names import new_id
from collm.store.pages import ObjectTable, Page, insert
from collm.store.responses import wipe
from collm.types import VersionId

_Turns = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What a user said about one choice of a response."""

    feedback_id: str
    response_id: str
    choice: int
    adapter: str
    """The adapter that answered, which learns from it."""
    version: VersionId
    """The version that answered."""
    rating: float | None
    """From 0 (bad) to 1 (good)."""
    messages: tuple[Mapping[str, Any], ...] | None
    """Prompt and answer to learn; ``None`` if there is nothing to learn, or it was deleted."""
    weight: float
    """Weight of the sample's loss."""
    created_at_s: float
    """Wall-clock time, seconds since 1970."""
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class Rated:
    """A rating, and what it took the place of."""

    feedback: Feedback
    replaced_id: str | None
    """The earlier rating of the same choice, whose row is gone; ``None`` if there was none."""


class FeedbackStore:
    """Owner of the feedback. Any thread may use it."""

    def __init__(
        self, database: Database, *, now_s: Callable[[], float], owner: str | None = None
    ) -> None:
        """Keep feedback in ``database``.

        Args:
            database: Holds the rows.
            now_s: Wall clock, seconds since 1970.
            owner: Name in the ids; ``None`` leaves it out.
        """
        self._database = database
        self._owner = owner
        self._now_s = now_s
        self._table = ObjectTable(
            name="feedback", key="feedback_id", noun="feedback", build=_from_row
        )

    def add(
        self,
        *,
        response_id: str,
        choice: int,
        adapter: str,
        version: VersionId,
        rating: float | None,
        messages: _Turns | None,
        weight: float,
    ) -> Feedback:
        """Keep feedback; it survives power loss once this returns.

        Args:
            response_id: The response it is about.
            choice: Which of its choices.
            adapter: The adapter that answered.
            version: The version that answered.
            rating: What the user gave, if anything.
            messages: Prompt and answer to learn, or ``None``.
            weight: Weight of the sample's loss.

        Raises:
            StateError: The adapter has the same messages already, or, without messages, the choice
                was rated so before; code ``"duplicate"``, whether the earlier one was deleted or
                not.
        """
        row = _row(
            messages,
            response_id=response_id,
            choice=choice,
            adapter=adapter,
            version=version,
            rating=rating,
            weight=weight,
        )
        with self._database.transaction() as connection:
            return self._insert(connection, row)

    def rate(
        self,
        *,
        response_id: str,
        choice: int,
        adapter: str,
        version: VersionId,
        rating: float,
        served: _Turns,
        weight: float,
    ) -> Rated:
        """Keep a rating of a served answer, in place of an earlier one of the same choice.

        Args:
            response_id: The response it is about.
            choice: Which of its choices.
            adapter: The adapter that answered.
            version: The version that answered.
            rating: What the user gave.
            served: The prompt and the answer that was served.
            weight: Weight of its loss; 0 teaches nothing, and keeps no text.

        Raises:
            StateError: The choice has this very rating already, or the adapter learns the same
                messages from another response, or either was deleted; code ``"duplicate"``.
        """
        row = _row(
            served if weight > 0 else None,
            response_id=response_id,
            choice=choice,
            adapter=adapter,
            version=version,
            rating=rating,
            weight=weight,
        )
        with_text, without = (_digest(response_id, choice, text) for text in (served, None))
        with self._database.transaction() as connection:
            earlier = connection.execute(
                "SELECT feedback_id, rating FROM feedback WHERE adapter = ? AND response_id = ? "
                "AND choice = ? AND digest IN (?, ?) AND NOT is_deleted",
                (adapter, response_id, choice, with_text, without),
            ).fetchone()
            replaced_id = None
            if earlier is not None and earlier["rating"] != rating:
                replaced_id = str(earlier["feedback_id"])
                connection.execute("DELETE FROM feedback WHERE feedback_id = ?", (replaced_id,))
            return Rated(self._insert(connection, row), replaced_id)

    def get(self, feedback_id: str) -> Feedback:
        """Return one; raises ``UnknownObjectError`` if there never was, or retention dropped it."""
        return self._table.find(self._database.query, feedback_id)

    def list(
        self, adapter: str | None = None, after: str | None = None, limit: int = 20
    ) -> Page[Feedback]:
        """Return a page of the feedback to an adapter, or to all, newest first, but not deleted.

        Raises:
            UnknownObjectError: There is no feedback ``after``.
        """
        return self._table.page(
            self._database,
            "NOT is_deleted AND (?1 IS NULL OR adapter = ?1)",
            (adapter,),
            after=after,
            limit=limit,
        )

    def adapters(self) -> tuple[str, ...]:
        """Return the adapters that have feedback, by name; the deleted counts too."""
        rows = self._database.query("SELECT DISTINCT adapter FROM feedback ORDER BY adapter")
        return tuple(row["adapter"] for row in rows)

    def samples(self, adapter: str) -> tuple[Feedback, ...]:
        """Return what an adapter shall learn from, oldest first."""
        rows = self._database.query(
            "SELECT * FROM feedback WHERE adapter = ? AND messages IS NOT NULL AND weight > 0 "
            "ORDER BY id",
            (adapter,),
        )
        return tuple(_from_row(row) for row in rows)

    def delete(self, feedback_id: str) -> Feedback:
        """Forget a sample's text, on disk too; return what is left. May be repeated.

        The answer that it is about is forgotten with it: the prompt of both is the same.

        Raises:
            UnknownObjectError: There is no such feedback.
        """
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE feedback SET messages = NULL, is_deleted = 1 WHERE feedback_id = ?",
                (feedback_id,),
            )
            left = self._table.find(connection.execute, feedback_id)
            wipe(connection, left.response_id)
        self._database.empty_log()
        return left

    def prune(self, adapter: str, max_samples: int, older_than_s: float) -> tuple[str, ...]:
        """Drop an adapter's oldest feedback; what was deleted by id stays refused, however old.

        Args:
            adapter: Whose feedback.
            max_samples: Latest samples kept, as many ratings without a text to learn, and as many
                refusals of what was deleted.
            older_than_s: Age in seconds from which on samples and ratings are dropped.

        Returns:
            Ids of the dropped feedback, oldest first; refusals are not among them.
        """
        with self._database.transaction() as connection:
            rows = connection.execute(
                "SELECT id, feedback_id, is_deleted FROM (SELECT id, feedback_id, is_deleted, "
                "created_at_s, row_number() OVER (PARTITION BY is_deleted, messages IS NULL "
                "ORDER BY id DESC) AS place FROM feedback WHERE adapter = ?) "
                "WHERE place > ? OR (created_at_s < ? AND NOT is_deleted) ORDER BY id",
                (adapter, max_samples, self._now_s() - older_than_s),
            ).fetchall()
            connection.executemany(
                "DELETE FROM feedback WHERE id = ?", [(row["id"],) for row in rows]
            )
        return tuple(row["feedback_id"] for row in rows if not row["is_deleted"])

    def _insert(self, connection: sqlite3.Connection, row: Mapping[str, Any]) -> Feedback:
        """Write a row, whose text the adapter must not have; raises ``StateError``."""
        _refuse_duplicate(connection, row["adapter"], row["digest"])
        feedback_id = new_id("fb", self._owner)
        row = {"feedback_id": feedback_id, **row, "created_at_s": self._now_s()}
        insert(connection, "feedback", row)
        return self._table.find(connection.execute, feedback_id)


def _row(messages: _Turns | None, **known: Any) -> dict[str, Any]:
    """Return the columns of new feedback, but for its id and time."""
    text = None if messages is None else to_json(messages)
    digest = _digest(known["response_id"], known["choice"], messages)
    return {**known, "messages": text, "digest": digest}


def _refuse_duplicate(connection: sqlite3.Connection, adapter: str, digest: str) -> None:
    earlier = connection.execute(
        "SELECT feedback_id, is_deleted FROM feedback WHERE adapter = ? AND digest = ?",
        (adapter, digest),
    ).fetchone()
    if earlier is not None:
        state = "was deleted" if earlier["is_deleted"] else "exists already"
        raise StateError(
            f"the same feedback to adapter {adapter!r} {state}: {earlier['feedback_id']}",
            code="duplicate",
        )


def _digest(response_id: str, choice: int, messages: _Turns | None) -> str:
    """Hash what must not come twice: the text, or without one, what is rated."""
    subject = messages if messages is not None else [response_id, choice]
    text = json.dumps(subject, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _from_row(row: sqlite3.Row) -> Feedback:
    return Feedback(
        feedback_id=row["feedback_id"],
        response_id=row["response_id"],
        choice=row["choice"],
        adapter=row["adapter"],
        version=row["version"],
        rating=row["rating"],
        messages=None if row["messages"] is None else tuple(json.loads(row["messages"])),
        weight=row["weight"],
        created_at_s=row["created_at_s"],
        is_deleted=bool(row["is_deleted"]),
    )
