"""The data folder of a cluster's front: its lock, its database and the stores that share them."""

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from collm.errors import ConfigError
from collm.store.allocations import AllocationJournal
from collm.store.database import Database
from collm.store.decisions import DecisionStore
from collm.store.files import make_folder
from collm.store.front_schema import FRONT_MIGRATIONS
from collm.store.rounds import RoundJournal
from collm.store.update_files import UpdateFiles
from collm.store.versions import VersionStore


class FrontFolder:
    """Everything a front keeps on disk, under a lock that a second front cannot get.

    A context manager; the lock ends with ``close`` or with the process, however it ends.
    """

    def __init__(self, path: Path, *, max_versions: int, now_s: Callable[[], float]) -> None:
        """Lock and open the folder, create what is missing, and clean up after a killed process.

        Args:
            path: The folder; it and its parents are created.
            max_versions: Latest federated versions kept per adapter, besides active and held ones.
            now_s: Wall clock, seconds since 1970.

        Raises:
            ConfigError: Another process uses the folder, it cannot be written, or a newer collm
                wrote it.
        """
        with ExitStack() as resources:
            try:
                make_folder(path)
                resources.enter_context(
                    FileLock(path / "front.lock", timeout=0, thread_local=False)
                )
                database = Database(path / "front.db", FRONT_MIGRATIONS)
                resources.callback(database.close)
                self.versions = VersionStore(
                    database, path / "versions", max_versions=max_versions, now_s=now_s
                )
                self.updates = UpdateFiles(path / "rounds")
            except Timeout:
                raise ConfigError(f"data folder {path} is in use by another front") from None
            except (OSError, sqlite3.Error) as error:
                raise ConfigError(f"data folder {path} cannot be used: {error}") from error
            self.decisions = DecisionStore(database, now_s=now_s)
            self.rounds = RoundJournal(database, now_s=now_s)
            self.allocations = AllocationJournal(database, now_s=now_s)
            self._resources = resources.pop_all()

    def close(self) -> None:
        """Close the database and let go of the lock."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
