"""The data folder of one replica: its lock, its database and the stores that share them."""

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from collm.errors import ConfigError
from collm.store.checkpoints import CheckpointStore
from collm.store.database import Database
from collm.store.decisions import DecisionStore
from collm.store.feedback import FeedbackStore
from collm.store.files import make_folder
from collm.store.job_logs import JobLogs
from collm.store.jobs import JobStore
from collm.store.pins import PinStore
from collm.store.responses import ResponseStore
from collm.store.update_files import UpdateFiles
from collm.store.uploads import FileStore
from collm.store.versions import VersionStore

_MAX_LOG_ENTRIES = 10_000
"""Events kept per job, days of them at one a minute; a continuous job would fill the disk."""


class DataFolder:
    """Everything a replica keeps on disk, under a lock that a second replica cannot get.

    A context manager; the lock ends with ``close`` or with the process, however it ends.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_versions: int,
        now_s: Callable[[], float],
        owner: str | None = None,
    ) -> None:
        """Lock and open the folder, create what is missing, and clean up after a killed process.

        Args:
            path: The folder; it and its parents are created.
            max_versions: Latest versions kept per adapter, besides active, held and pinned ones.
            now_s: Wall clock, seconds since 1970.
            owner: The replica's name, in the ids of what it keeps, for who has to find it among
                several; ``None`` leaves it out.

        Raises:
            ConfigError: Another process uses the folder, it cannot be written, or a newer collm
                wrote it.
        """
        with ExitStack() as resources:
            try:
                make_folder(path)
                resources.enter_context(
                    FileLock(path / "collm.lock", timeout=0, thread_local=False)
                )
                database = Database(path / "collm.db")
                resources.callback(database.close)
                self.versions = VersionStore(
                    database, path / "adapters", max_versions=max_versions, now_s=now_s
                )
                self.checkpoints = CheckpointStore(path / "training")
                self.files = FileStore(database, path / "files", now_s=now_s, owner=owner)
                self.updates = UpdateFiles(path / "rounds")
            except Timeout:
                raise ConfigError(
                    f"data folder {path} is in use by another process; each replica needs its own"
                ) from None
            except (OSError, sqlite3.Error) as error:
                raise ConfigError(f"data folder {path} cannot be used: {error}") from error
            self.decisions = DecisionStore(database, now_s=now_s)
            self.pins = PinStore(database)
            self.jobs = JobStore(database, now_s=now_s, owner=owner)
            self.job_logs = JobLogs(
                database, max_entries=_MAX_LOG_ENTRIES, now_s=now_s, owner=owner
            )
            self.responses = ResponseStore(database, now_s=now_s)
            self.feedback = FeedbackStore(database, now_s=now_s, owner=owner)
            self._database = database
            self._resources = resources.pop_all()

    def tend(self) -> None:
        """Finish what another process was in the way of; call it now and then."""
        self._database.tend()

    def close(self) -> None:
        """Close the database and let go of the lock."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
