"""Uploaded files: content on disk and a row each.

The content is complete before its row is written and the row goes first when a file is deleted, so
a row always points to whole content; content without a row is garbage of a killed process.
"""

import hashlib
import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from collm.errors import DataError, StateError
from collm.store.database import Database
from collm.store.files import create_file, remove_remains
from collm.store.names import new_id
from collm.store.pages import ObjectTable, Order, Page

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """An uploaded file; neither its row nor its content ever changes."""

    file_id: str
    filename: str
    """What the user calls it; never a path here."""
    purpose: str
    num_bytes: int
    num_samples: int
    digest: str
    """SHA-256 of the content."""
    created_at_s: float
    """Wall-clock time, seconds since 1970."""
    path: Path
    """The content; gone once the file is deleted."""


class FileStore:
    """Owner of the uploaded files. Any thread may use it."""

    def __init__(
        self,
        database: Database,
        root: Path,
        *,
        now_s: Callable[[], float],
        owner: str | None = None,
    ) -> None:
        """Open the store and remove content that belongs to no file.

        Args:
            database: Holds the rows.
            root: Folder for the content; nothing else may live there.
            now_s: Wall clock, seconds since 1970.
            owner: Name in the ids; ``None`` leaves it out.
        """
        self._database = database
        self._owner = owner
        self._root = root
        self._now_s = now_s
        self._table = ObjectTable(
            name="files",
            key="file_id",
            noun="file",
            build=self._from_row,
            visible="NOT is_deleted",
        )
        self._remove_garbage()

    def add(self, *, filename: str, purpose: str, content: bytes, num_samples: int) -> StoredFile:
        """Keep a file; it survives power loss once this returns.

        Args:
            filename: What the user calls it.
            purpose: What it is for, in the words of the API.
            content: Its bytes, checked before.
            num_samples: Training samples counted in it.
        """
        file_id = new_id("file", self._owner)
        path = self._root / file_id
        row = (
            file_id,
            filename.encode("utf-8", "replace").decode(),  # the database takes no lone surrogates
            purpose,
            len(content),
            num_samples,
            hashlib.sha256(content).hexdigest(),
            self._now_s(),
        )
        try:
            create_file(path, content)
            with self._database.transaction() as connection:
                connection.execute(
                    "INSERT INTO files (file_id, filename, purpose, num_bytes, num_samples, "
                    "digest, created_at_s) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    row,
                )
                return self._table.find(connection.execute, file_id)
        except Exception:
            path.unlink(missing_ok=True)
            raise

    def get(self, file_id: str) -> StoredFile:
        """Return one file; raises ``UnknownObjectError`` when there is none or it was deleted."""
        return self._table.find(self._database.query, file_id)

    def list(
        self,
        *,
        after: str | None = None,
        limit: int = 100,
        purpose: str | None = None,
        order: Order = "desc",
    ) -> Page[StoredFile]:
        """Return a page of files, newest first unless ``order`` is ``"asc"``.

        Raises:
            UnknownObjectError: There never was a file ``after``.
        """
        return self._table.page(
            self._database,
            "?1 IS NULL OR purpose = ?1",
            (purpose,),
            after=after,
            limit=limit,
            order=order,
        )

    def read(self, file_id: str) -> bytes:
        """Return a file's content.

        Raises:
            UnknownObjectError: There is no such file, or it was deleted.
            DataError: The disk lost or changed the content.
        """
        stored = self.get(file_id)
        try:
            content = stored.path.read_bytes()
        except FileNotFoundError:
            self.get(file_id)  # it may have been deleted meanwhile
            raise DataError(f"file {file_id}: its content is missing from the disk") from None
        if hashlib.sha256(content).hexdigest() != stored.digest:
            raise DataError(f"file {file_id}: its content on the disk is damaged")
        return content

    def delete(self, file_id: str) -> None:
        """Delete a file; its row stays, emptied, so that lists can go on after it.

        Raises:
            UnknownObjectError: There is no such file, or it was deleted before.
            StateError: A job that has not ended uses it.
        """
        with self._database.transaction() as connection:
            stored = self._table.find(connection.execute, file_id)
            user = connection.execute(
                "SELECT job_id FROM unfinished_jobs "
                "WHERE training_file = ?1 OR validation_file = ?1",
                (file_id,),
            ).fetchone()
            if user is not None:
                raise StateError(
                    f"file {file_id} is in use by job {user['job_id']}; "
                    "cancel the job or wait for its end",
                    code="file_in_use",
                )
            connection.execute(
                "UPDATE files SET is_deleted = 1, filename = '' WHERE file_id = ?", (file_id,)
            )
        stored.path.unlink(missing_ok=True)

    def _remove_garbage(self) -> None:
        remove_remains(self._root)
        rows = self._database.query("SELECT file_id FROM files WHERE NOT is_deleted")
        known = {row["file_id"] for row in rows}
        for path in self._root.glob("file-*"):
            if path.name not in known:
                _log.warning("%s belongs to no uploaded file; removing it", path)
                path.unlink()

    def _from_row(self, row: sqlite3.Row) -> StoredFile:
        return StoredFile(
            file_id=row["file_id"],
            filename=row["filename"],
            purpose=row["purpose"],
            num_bytes=row["num_bytes"],
            num_samples=row["num_samples"],
            digest=row["digest"],
            created_at_s=row["created_at_s"],
            path=self._root / row["file_id"],
        )
