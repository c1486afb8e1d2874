"""The journal of federated rounds: what was settled, before anything is built on it."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from collm.errors import StateError, UnknownObjectError
from collm.store.database import Database
from collm.store.json_text import to_json
from collm.store.names import check_name
from collm.types import VersionId

PartKey = tuple[int, str]
"""Round and member of one part, within an adapter."""


class MemberOutcome(StrEnum):
    """What became of one member's part in a round."""

    OPEN = "open"
    """Nothing is settled yet."""
    REPORTED = "reported"
    """Its update is on disk."""
    DECLINED = "declined"
    """It does not take part."""
    FAILED = "failed"
    """It could not train, or what it sent was not what it said."""
    DEAD = "dead"
    """It was not there when the round went on; if it comes back, its update may still come."""
    LATE = "late"
    """It had not finished when the round went on; its update may still come."""
    REFUSED = "refused"
    """Its update was left out of the aggregate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """How far a round is."""

    adapter: str
    round: int
    status: str
    """What is done next, or how it ended; in the words of the rounds' protocol."""
    plan: Mapping[str, Any]
    """What members were asked, as JSON has it."""
    base_digest: str
    """Digest of the base model that the members serve."""
    started_at_s: float
    """Wall-clock time, seconds since 1970."""
    deadline_at_s: float | None
    """When updates are due, on the wall clock; ``None`` until members were asked."""
    candidate: VersionId | None
    """The aggregate's version, once it is published."""
    results: Mapping[str, Any]
    """What each step found, by its name, as JSON has it."""
    reason: str | None
    """Why it ended as it did, for people."""
    ended_at_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """One member's part in a round."""

    adapter: str
    round: int
    member: str
    outcome: MemberOutcome
    report: Mapping[str, Any] | None
    """What the member said about its update, as JSON has it; the update is on disk."""
    reason: str | None
    used_in: int | None
    """The round whose aggregate holds the update; later than ``round`` for a stale one."""


class RoundJournal:
    """Owner of the rounds' rows. Any thread may use it.

    Each method that writes is one transaction, durable once it returns.
    """

    def __init__(self, database: Database, *, now_s: Callable[[], float]) -> None:
        """Keep rounds in ``database``, dated by ``now_s`` (wall clock, seconds since 1970)."""
        self._database = database
        self._now_s = now_s

    def next_round(self, adapter: str) -> int:
        """Return the number of an adapter's next round, from 1."""
        rows = self._database.query(
            "SELECT coalesce(max(round), 0) + 1 AS next FROM rounds WHERE adapter = ?", (adapter,)
        )
        return int(rows[0]["next"])

    def start(
        self,
        adapter: str,
        number: int,
        status: str,
        *,
        plan: Mapping[str, Any],
        base_digest: str,
        members: Iterable[str],
        results: Mapping[str, Any] | None = None,
    ) -> RoundRecord:
        """Keep a new round, with all its members' parts open.

        Args:
            adapter: What the members learn.
            number: The round's.
            status: What is done first.
            plan: What members are asked, as JSON has it.
            base_digest: Digest of the base model that they serve.
            members: Their names.
            results: What planning found, by its name, as JSON has it.

        Raises:
            AdapterError: The adapter's name is not allowed.
            StateError: The adapter has a round that has not ended, or one of this number; code
                ``"round_exists"``.
        """
        check_name("adapter name", adapter)
        try:
            with self._database.transaction() as connection:
                connection.execute(
                    "INSERT INTO rounds "
                    "(adapter, round, status, plan, base_digest, results, started_at_s) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        adapter,
                        number,
                        status,
                        to_json(plan),
                        base_digest,
                        to_json(results or {}),
                        self._now_s(),
                    ),
                )
                connection.executemany(
                    "INSERT INTO round_members (adapter, round, member, outcome) "
                    "VALUES (?, ?, ?, ?)",
                    [(adapter, number, member, MemberOutcome.OPEN) for member in members],
                )
        except sqlite3.IntegrityError as error:
            raise StateError(
                f"adapter {adapter!r} has a round under way, or had round {number} already",
                code="round_exists",
            ) from error
        return self.get(adapter, number)

    def advance(
        self,
        record: RoundRecord,
        status: str,
        *,
        deadline_at_s: float | None = None,
        candidate: VersionId | None = None,
        results: Mapping[str, Any] | None = None,
        used: Iterable[PartKey] = (),
        refused: Mapping[PartKey, str] | None = None,
    ) -> RoundRecord:
        """Take a round to its next status, with what the step before it found.

        Args:
            record: The round as it was when the step began.
            status: The next one.
            deadline_at_s: When updates are due, on the wall clock.
            candidate: The aggregate's version.
            results: Added to the round's results.
            used: Parts, of this round and earlier ones, whose updates are in the aggregate.
            refused: Parts whose updates were left out for good, and why.

        Raises:
            StateError: The round is not as ``record`` has it; code ``"round_moved"``.
        """
        changes = {
            "status": status,
            "deadline_at_s": record.deadline_at_s if deadline_at_s is None else deadline_at_s,
            "candidate": candidate or record.candidate,
            "results": to_json({**record.results, **(results or {})}),
        }
        with self._database.transaction() as connection:
            _change(connection, record, changes)
            connection.executemany(
                "UPDATE round_members SET used_in = ? "
                "WHERE adapter = ? AND round = ? AND member = ?",
                [(record.round, record.adapter, *part) for part in used],
            )
            _refuse(connection, record.adapter, refused)
        return self.get(record.adapter, record.round)

    def end(
        self,
        record: RoundRecord,
        status: str,
        reason: str,
        results: Mapping[str, Any] | None = None,
        refused: Mapping[PartKey, str] | None = None,
    ) -> RoundRecord:
        """End a round, with what its last step found; the rest is as in ``advance``."""
        changes = {
            "status": status,
            "reason": reason,
            "results": to_json({**record.results, **(results or {})}),
            "ended_at_s": self._now_s(),
        }
        with self._database.transaction() as connection:
            _change(connection, record, changes)
            _refuse(connection, record.adapter, refused)
        return self.get(record.adapter, record.round)

    def settle(
        self,
        adapter: str,
        number: int,
        member: str,
        outcome: MemberOutcome,
        *,
        report: Mapping[str, Any] | None = None,
        reason: str | None = None,
    ) -> None:
        """Record what became of a member's part in a round."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE round_members SET outcome = ?, report = ?, reason = ? "
                "WHERE adapter = ? AND round = ? AND member = ?",
                (
                    outcome,
                    None if report is None else to_json(report),
                    reason,
                    adapter,
                    number,
                    member,
                ),
            )

    def get(self, adapter: str, number: int) -> RoundRecord:
        """Return one round; raises ``UnknownObjectError`` when there is none."""
        rows = self._database.query(
            "SELECT * FROM rounds WHERE adapter = ? AND round = ?", (adapter, number)
        )
        if not rows:
            raise UnknownObjectError(f"adapter {adapter!r} has no round {number}")
        return _round(rows[0])

    def resume(self) -> dict[str, RoundRecord]:
        """Return the round to go on with of each adapter that has one, by the adapter's name.

        Its status says which step comes next; that step may have been under way when the process
        ended, so it has to bear being done again.
        """
        rows = self._database.query("SELECT * FROM rounds WHERE ended_at_s IS NULL ORDER BY id")
        return {row["adapter"]: _round(row) for row in rows}

    def latest(self, adapter: str, limit: int) -> tuple[RoundRecord, ...]:
        """Return an adapter's latest rounds, newest first."""
        rows = self._database.query(
            "SELECT * FROM rounds WHERE adapter = ? ORDER BY round DESC LIMIT ?", (adapter, limit)
        )
        return tuple(_round(row) for row in rows)

    def ended(self, adapter: str, status: str, limit: int | None) -> tuple[RoundRecord, ...]:
        """Return an adapter's rounds that ended so, or only the latest ``limit``; oldest first."""
        rows = self._database.query(
            "SELECT * FROM rounds WHERE adapter = ? AND ended_at_s IS NOT NULL AND status = ? "
            "ORDER BY round DESC LIMIT ?",
            (adapter, status, -1 if limit is None else limit),
        )
        return tuple(_round(row) for row in reversed(rows))

    def num_ended(self, adapter: str, statuses: Iterable[str]) -> int:
        """Return how many of an adapter's rounds ended in one of these ways."""
        rows = self._database.query(
            "SELECT count(*) AS num FROM rounds WHERE adapter = ? AND ended_at_s IS NOT NULL "
            "AND status IN (SELECT value FROM json_each(?))",
            (adapter, json.dumps(list(statuses))),
        )
        return int(rows[0]["num"])

    def members(self, adapter: str, number: int) -> tuple[MemberRecord, ...]:
        """Return all members' parts in a round, by name."""
        return self._parts("round = ?", adapter, number)

    def owed(self, adapter: str, rounds: range) -> tuple[MemberRecord, ...]:
        """Return the parts in these rounds that the round did not wait for and may still come."""
        return self._parts(
            "outcome IN (?, ?) AND round >= ? AND round < ?",
            adapter,
            MemberOutcome.LATE,
            MemberOutcome.DEAD,
            rounds.start,
            rounds.stop,
        )

    def reported(self, adapter: str, rounds: range) -> tuple[MemberRecord, ...]:
        """Return the parts in these rounds whose updates are on disk, used or not."""
        return self._parts(
            "outcome = ? AND round >= ? AND round < ?",
            adapter,
            MemberOutcome.REPORTED,
            rounds.start,
            rounds.stop,
        )

    def _parts(self, condition: str, adapter: str, *values: Any) -> tuple[MemberRecord, ...]:
        rows = self._database.query(
            f"SELECT * FROM round_members WHERE adapter = ? AND {condition} ORDER BY round, member",
            (adapter, *values),
        )
        return tuple(_member(row) for row in rows)


def _change(
    connection: sqlite3.Connection, record: RoundRecord, changes: Mapping[str, Any]
) -> None:
    assignments = ", ".join(f"{column} = ?" for column in changes)
    changed = connection.execute(
        f"UPDATE rounds SET {assignments} "
        "WHERE adapter = ? AND round = ? AND status = ? AND ended_at_s IS NULL",
        (*changes.values(), record.adapter, record.round, record.status),
    )
    if changed.rowcount != 1:
        raise StateError(
            f"round {record.round} of {record.adapter!r} is not {record.status} any more",
            code="round_moved",
        )


def _refuse(
    connection: sqlite3.Connection, adapter: str, refused: Mapping[PartKey, str] | None
) -> None:
    connection.executemany(
        "UPDATE round_members SET outcome = ?, reason = ? "
        "WHERE adapter = ? AND round = ? AND member = ?",
        [
            (MemberOutcome.REFUSED, reason, adapter, *part)
            for part, reason in (refused or {}).items()
        ],
    )


def _round(row: sqlite3.Row) -> RoundRecord:
    return RoundRecord(
        adapter=row["adapter"],
        round=row["round"],
        status=row["status"],
        plan=json.loads(row["plan"]),
        base_digest=row["base_digest"],
        started_at_s=row["started_at_s"],
        deadline_at_s=row["deadline_at_s"],
        candidate=row["candidate"],
        results=json.loads(row["results"]),
        reason=row["reason"],
        ended_at_s=row["ended_at_s"],
    )


def _member(row: sqlite3.Row) -> MemberRecord:
    return MemberRecord(
        adapter=row["adapter"],
        round=row["round"],
        member=row["member"],
        outcome=MemberOutcome(row["outcome"]),
        report=None if row["report"] is None else json.loads(row["report"]),
        reason=row["reason"],
        used_in=row["used_in"],
    )
