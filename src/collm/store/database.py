"""The SQLite file: one writing connection and one for reads, which never wait for a write."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from collm.errors import ConfigError, DiskFullError
from collm.store.schema import MIGRATIONS

_BUSY_S = 5.0
"""How long a write waits for another process."""
_LOG_BUSY_S = 0.1
"""The same of emptying the log, which reads wait for and which is tried again."""


class Database:
    """Owner of the connections; any thread may use it. What is committed survives power loss."""

    def __init__(self, path: Path, migrations: Sequence[str] = MIGRATIONS) -> None:
        """Open or create the database and bring its tables up to date.

        Args:
            path: The file.
            migrations: Entry k takes a database from version k to k + 1; a replica's by default.

        Raises:
            ConfigError: The file is no database, a newer collm wrote it, or its file system cannot
                keep a write-ahead log.
        """
        try:
            self._writer = _open(path, migrations)
            self._reader = _connect(path)
        except sqlite3.Error as error:
            raise ConfigError(f"database {path} cannot be used: {error}") from error
        self._writing = Lock()
        self._reading = Lock()
        self._is_log_due = True  # a killed process may have left deleted text in it

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the writing connection; commit when the block ends, undo all if it raises.

        Raises:
            DiskFullError: There is no room for what was changed, and all is undone.
        """
        with self._writing:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException as error:
                self._writer.rollback()
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                    raise DiskFullError(f"the database cannot grow: {error}") from error
                raise

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of one ``SELECT`` over everything committed before."""
        with self._reading:
            return self._reader.execute(sql, parameters).fetchall()

    def empty_log(self) -> None:
        """Empty the write-ahead log, so that text deleted before is nowhere on disk any more.

        Another process that reads, such as a backup, is in the way: then ``tend`` tries again.
        """
        with self._writing, self._reading:
            self._writer.execute(f"PRAGMA busy_timeout = {int(1000 * _LOG_BUSY_S)}")
            is_busy, *_ = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._writer.execute(f"PRAGMA busy_timeout = {int(1000 * _BUSY_S)}")
            self._is_log_due = bool(is_busy)

    def tend(self) -> None:
        """Empty the log if that is still owed; call it now and then."""
        if self._is_log_due:
            self.empty_log()

    def close(self) -> None:
        """Close the connections; waits for a transaction in progress."""
        with self._writing, self._reading:
            self._reader.close()
            self._writer.close()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    connection.row_factory = sqlite3.Row
    return connection


def _open(path: Path, migrations: Sequence[str]) -> sqlite3.Connection:
    connection = _connect(path)
    try:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise ConfigError(f"database {path}: its file system allows journal mode {mode!r} only")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # deleted text leaves no trace in the file
        _migrate(connection, path, migrations)
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(migrations):
        raise ConfigError(
            f"database {path} has schema {version}, made by a newer collm; "
            f"this one knows up to {len(migrations)}"
        )
    for number, script in enumerate(migrations[version:], start=version + 1):
        connection.executescript(
            f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;"
        )
