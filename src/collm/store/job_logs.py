"""What happened to fine-tuning jobs, and which versions they made: the latest of each."""

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from collm.store.database import Database
from collm.store.json_text import to_json
from collm.store.names import new_id
from collm.store.pages import ObjectTable, Page, insert
from collm.types import VersionId

T = TypeVar("T")
EventLevel = Literal["info", "warn", "error"]
EventKind = Literal["message", "metrics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """One thing that happened to a job."""

    event_id: str
    job_id: str
    level: EventLevel
    kind: EventKind
    message: str
    data: Mapping[str, Any]
    """Figures by name, as JSON has them; NaN and infinities as texts."""
    created_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCheckpoint:
    """A version that a job made."""

    checkpoint_id: str
    job_id: str
    version: VersionId
    step: int
    """Optimizer step after which it was taken."""
    metrics: Mapping[str, Any]
    """Figures by name, as JSON has them; NaN and infinities as texts."""
    created_at_s: float


class JobLogs:
    """Owner of the jobs' events and checkpoints. Any thread may use it."""

    def __init__(
        self,
        database: Database,
        *,
        max_entries: int,
        now_s: Callable[[], float],
        owner: str | None = None,
    ) -> None:
        """Keep logs in a database that has the jobs.

        Args:
            database: Holds the rows.
            max_entries: Latest events, and as many checkpoints, kept per job.
            now_s: Wall clock, seconds since 1970.
            owner: Name in the ids; ``None`` leaves it out.
        """
        self._database = database
        self._max_entries = max_entries
        self._now_s = now_s
        self._owner = owner

    def add_event(
        self,
        job_id: str,
        level: EventLevel,
        message: str,
        kind: EventKind = "message",
        data: Mapping[str, Any] | None = None,
    ) -> JobEvent:
        """Keep an event of a job, ended or not, and drop its oldest beyond those to keep.

        Raises:
            UnknownObjectError: There is no such job.
        """
        values = {
            "level": level,
            "kind": kind,
            "message": message,
            "data": to_json(data or {}),
        }
        return self._add(_EVENTS, "ftevent", job_id, values)

    def events(self, job_id: str, *, after: str | None = None, limit: int = 20) -> Page[JobEvent]:
        """Return a page of a job's events, newest first.

        Raises:
            UnknownObjectError: There is no such job, or no event ``after`` any more.
        """
        _JOB_IDS.find(self._database.query, job_id)
        return _EVENTS.page(self._database, "job_id = ?", (job_id,), after=after, limit=limit)

    def add_checkpoint(
        self, job_id: str, version: VersionId, step: int, metrics: Mapping[str, Any]
    ) -> JobCheckpoint:
        """Keep a checkpoint of a job, and drop its oldest beyond those to keep.

        Raises:
            UnknownObjectError: There is no such job.
        """
        values = {"version": version, "step": step, "metrics": to_json(metrics)}
        return self._add(_CHECKPOINTS, "ftckpt", job_id, values)

    def checkpoints(
        self, job_id: str, *, after: str | None = None, limit: int = 10
    ) -> Page[JobCheckpoint]:
        """Return a page of a job's checkpoints, newest first.

        Raises:
            UnknownObjectError: There is no such job, or no checkpoint ``after`` any more.
        """
        _JOB_IDS.find(self._database.query, job_id)
        return _CHECKPOINTS.page(self._database, "job_id = ?", (job_id,), after=after, limit=limit)

    def _add(self, table: ObjectTable[T], prefix: str, job_id: str, values: Mapping[str, Any]) -> T:
        """Add a row to a job's log and drop the oldest rows beyond those to keep."""
        row_id = new_id(prefix, self._owner)
        shared = {table.key: row_id, "job_id": job_id, "created_at_s": self._now_s()}
        with self._database.transaction() as connection:
            _JOB_IDS.find(connection.execute, job_id)
            insert(connection, table.name, {**shared, **values})
            connection.execute(
                f"DELETE FROM {table.name} WHERE job_id = ?1 AND id <= (SELECT id FROM "
                f"{table.name} WHERE job_id = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                (job_id, self._max_entries),
            )
            return table.find(connection.execute, row_id)


def _job_id(row: sqlite3.Row) -> str:
    return str(row["job_id"])


def _event(row: sqlite3.Row) -> JobEvent:
    return JobEvent(
        event_id=row["event_id"],
        job_id=row["job_id"],
        level=row["level"],
        kind=row["kind"],
        message=row["message"],
        data=json.loads(row["data"]),
        created_at_s=row["created_at_s"],
    )


def _checkpoint(row: sqlite3.Row) -> JobCheckpoint:
    return JobCheckpoint(
        checkpoint_id=row["checkpoint_id"],
        job_id=row["job_id"],
        version=row["version"],
        step=row["step"],
        metrics=json.loads(row["metrics"]),
        created_at_s=row["created_at_s"],
    )


_JOB_IDS = ObjectTable(name="jobs", key="job_id", noun="job", build=_job_id)
_EVENTS = ObjectTable(name="job_events", key="event_id", noun="event", build=_event)
_CHECKPOINTS = ObjectTable(
    name="job_checkpoints", key="checkpoint_id", noun="checkpoint", build=_checkpoint
)
