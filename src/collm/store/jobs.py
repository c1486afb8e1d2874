"""Fine-tuning jobs.

An adapter has at most one job that has not ended, and a job that has ended never changes again.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from collm.errors import StateError, UnknownObjectError
from collm.store.database import Database
from collm.store.json_text import to_json
from collm.store.names import check_name, new_id
from collm.store.pages import ObjectTable, Page, insert
from collm.types import VersionId


class JobStatus(StrEnum):
    """Where a job stands, in the words of the OpenAI API."""

    VALIDATING_FILES = "validating_files"
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """Whether a job in this state never changes again."""
        return self in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as it stood when it was read."""

    job_id: str
    adapter: str
    status: JobStatus
    training_file: str | None
    """Id of an uploaded file."""
    validation_file: str | None
    """Id of an uploaded file."""
    settings: Mapping[str, Any]
    """How it trains, as JSON has it."""
    metadata: Mapping[str, str]
    """The user's own notes."""
    is_continuous: bool
    """Whether it follows its data and never ends by itself."""
    is_configured: bool
    """Whether it comes from the configuration file."""
    created_at_s: float
    """Wall-clock time, seconds since 1970, like the other times."""
    started_at_s: float | None
    """When it first ran."""
    finished_at_s: float | None
    """Set exactly when it has ended."""
    num_trained_tokens: int
    result: VersionId | None
    """The version that it made last."""
    error: Mapping[str, Any] | None
    """Why it failed, as JSON has it."""


class JobStore:
    """Owner of the jobs' rows. Any thread may use it."""

    def __init__(
        self,
        database: Database,
        *,
        now_s: Callable[[], float],
        owner: str | None = None,
    ) -> None:
        """Keep jobs in a database.

        Args:
            database: Holds the rows.
            now_s: Wall clock, seconds since 1970.
            owner: Name in the ids; ``None`` leaves it out.
        """
        self._database = database
        self._owner = owner
        self._now_s = now_s

    def add(
        self,
        *,
        adapter: str,
        settings: Mapping[str, Any],
        is_continuous: bool,
        training_file: str | None = None,
        validation_file: str | None = None,
        metadata: Mapping[str, str] | None = None,
        is_configured: bool = False,
        status: JobStatus = JobStatus.VALIDATING_FILES,
    ) -> JobRecord:
        """Keep a new job; it survives power loss once this returns.

        Raises:
            AdapterError: The adapter's name is not allowed.
            StateError: Another job of the adapter has not ended; code ``"job_exists"``.
            UnknownObjectError: A file does not exist, or was deleted.
        """
        check_name("adapter name", adapter)
        job_id, now_s = new_id("ftjob", self._owner), self._now_s()
        values = {
            "job_id": job_id,
            "adapter": adapter,
            "status": status,
            "training_file": training_file,
            "validation_file": validation_file,
            "settings": to_json(settings),
            "metadata": to_json(metadata or {}),
            "is_continuous": is_continuous,
            "is_configured": is_configured,
            "created_at_s": now_s,
            **_times(status, now_s),
        }
        with self._database.transaction() as connection:
            _refuse_second(connection, adapter)
            for file_id in (training_file, validation_file):
                _require_file(connection, file_id)
            insert(connection, "jobs", values)
            return _JOBS.find(connection.execute, job_id)

    def get(self, job_id: str) -> JobRecord:
        """Return one job; raises ``UnknownObjectError`` when there is none."""
        return _JOBS.find(self._database.query, job_id)

    def list(
        self,
        *,
        after: str | None = None,
        limit: int = 20,
        metadata: Mapping[str, str] | None = None,
    ) -> Page[JobRecord]:
        """Return a page of jobs, newest first.

        Args:
            after: The job to go on after.
            limit: Most jobs in the page.
            metadata: Only jobs that have all these entries.

        Raises:
            UnknownObjectError: There is no job ``after``.
        """
        return _JOBS.page(
            self._database,
            "NOT EXISTS (SELECT 1 FROM json_each(?) AS wanted WHERE NOT EXISTS (SELECT 1 "
            "FROM json_each(jobs.metadata) AS own "
            "WHERE own.key = wanted.key AND own.value = wanted.value))",
            (to_json(metadata or {}),),
            after=after,
            limit=limit,
        )

    def unfinished(self) -> tuple[JobRecord, ...]:
        """Return the jobs that have not ended, oldest first."""
        rows = self._database.query("SELECT * FROM unfinished_jobs ORDER BY id")
        return tuple(_job(row) for row in rows)

    def change(
        self,
        job_id: str,
        *,
        settings: Mapping[str, Any] | None = None,
        status: JobStatus | None = None,
        started_at_s: float | None = None,
        finished_at_s: float | None = None,
        num_trained_tokens: int | None = None,
        result: VersionId | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> JobRecord:
        """Change what is given of a job that has not ended, and return it as it is then.

        A job that first runs is dated as started now, and one that ends as finished now, unless
        times are given.

        Raises:
            UnknownObjectError: There is no such job.
            StateError: It has ended; code ``"job_ended"``.
        """
        given = {
            "settings": None if settings is None else to_json(settings),
            "status": status,
            "started_at_s": started_at_s,
            "finished_at_s": finished_at_s,
            "num_trained_tokens": num_trained_tokens,
            "result": result,
            "error": None if error is None else to_json(error),
        }
        changes = {column: value for column, value in given.items() if value is not None}
        with self._database.transaction() as connection:
            job = _JOBS.find(connection.execute, job_id)
            if job.status.has_ended:
                raise StateError(f"job {job_id} has ended: {job.status}", code="job_ended")
            after = status or job.status
            assert after.has_ended or finished_at_s is None, "only an ended job has finished"
            times = _times(after, self._now_s())
            if job.started_at_s is not None:
                times.pop("started_at_s", None)
            _update(connection, job_id, times | changes)
            return _JOBS.find(connection.execute, job_id)


def _update(connection: sqlite3.Connection, job_id: str, changes: Mapping[str, Any]) -> None:
    if changes:
        assignments = ", ".join(f"{column} = ?" for column in changes)
        connection.execute(
            f"UPDATE jobs SET {assignments} WHERE job_id = ?", (*changes.values(), job_id)
        )


def _times(status: JobStatus, now_s: float) -> dict[str, Any]:
    """Return the times that a job gets when it comes to a status."""
    if status.has_ended:
        return {"finished_at_s": now_s}
    return {"started_at_s": now_s} if status is JobStatus.RUNNING else {}


def _refuse_second(connection: sqlite3.Connection, adapter: str) -> None:
    other = connection.execute(
        "SELECT job_id, status FROM unfinished_jobs WHERE adapter = ?", (adapter,)
    ).fetchone()
    if other is not None:
        raise StateError(
            f"adapter {adapter!r} has job {other['job_id']} already, which is {other['status']}; "
            "cancel it first",
            code="job_exists",
        )


def _require_file(connection: sqlite3.Connection, file_id: str | None) -> None:
    if (
        file_id is not None
        and not connection.execute(
            "SELECT 1 FROM files WHERE file_id = ? AND NOT is_deleted", (file_id,)
        ).fetchall()
    ):
        raise UnknownObjectError(f"file {file_id!r} does not exist")


def _job(row: sqlite3.Row) -> JobRecord:
    return JobRecord(
        job_id=row["job_id"],
        adapter=row["adapter"],
        status=JobStatus(row["status"]),
        training_file=row["training_file"],
        validation_file=row["validation_file"],
        settings=json.loads(row["settings"]),
        metadata=json.loads(row["metadata"]),
        is_continuous=bool(row["is_continuous"]),
        is_configured=bool(row["is_configured"]),
        created_at_s=row["created_at_s"],
        started_at_s=row["started_at_s"],
        finished_at_s=row["finished_at_s"],
        num_trained_tokens=row["num_trained_tokens"],
        result=row["result"],
        error=None if row["error"] is None else json.loads(row["error"]),
    )


_JOBS = ObjectTable(name="jobs", key="job_id", noun="job", build=_job)
