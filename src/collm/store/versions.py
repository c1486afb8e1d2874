"""Published adapter versions: a PEFT folder and a row each.

The folder is complete before its row is written, so a row always points to a whole version; a
folder without a row is garbage of a killed process.
"""

import json
import logging
import re
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from collm.errors import AdapterError, ConfigError, UnknownAdapterError
from collm.store.database import Database
from collm.store.files import create_folder, remove_remains
from collm.store.names import check_name
from collm.types import VersionId

_log = logging.getLogger(__name__)
_NUMBER = re.compile(r"[1-9][0-9]{0,14}")
"""Labels that count as numbers; longer ones would not fit the database's integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedVersion:
    """A version on disk; neither its row nor its folder ever changes."""

    version: VersionId
    adapter: str
    label: str
    """The part of ``version`` after ``@``."""
    digest: str
    """SHA-256 of the factors."""
    base_digest: str
    """Digest of the base model that it was made for."""
    rank: int
    metadata: Mapping[str, str]
    published_at_s: float
    """Wall-clock time, seconds since 1970."""
    folder: Path
    """PEFT folder; removed once enough newer versions are published."""


class VersionStore:
    """Owner of the versions on disk. Any thread may read; writes take turns."""

    def __init__(
        self, database: Database, root: Path, *, max_versions: int, now_s: Callable[[], float]
    ) -> None:
        """Open the store and remove folders that belong to no published version.

        Args:
            database: Holds the rows.
            root: Folder for ``NAME/LABEL/``; nothing else may live there.
            max_versions: Latest versions kept per adapter, besides active, held and pinned ones.
            now_s: Wall clock, seconds since 1970.

        Raises:
            ConfigError: ``max_versions`` is under 1.
        """
        if max_versions < 1:
            raise ConfigError(f"max_versions is {max_versions}; at least 1 is needed")
        self._database = database
        self._root = root
        self._max_versions = max_versions
        self._now_s = now_s
        self._publishing = Lock()
        self._remove_garbage()

    def next_number(self, adapter: str) -> int:
        """Return the number after the highest label that was one; from 1, never used before."""
        rows = self._database.query("SELECT next_number FROM adapters WHERE name = ?", (adapter,))
        return int(rows[0]["next_number"]) if rows else 1

    def publish(
        self,
        adapter: str,
        label: str,
        *,
        digest: str,
        base_digest: str,
        rank: int,
        metadata: Mapping[str, str],
        write: Callable[[Path], None],
    ) -> PublishedVersion:
        """Keep a version, then drop the oldest ones beyond those to keep.

        Publishing the same content again returns what is there, so a caller may retry.

        Args:
            adapter: Name of the adapter.
            label: A number, or a text for versions outside the count.
            digest: SHA-256 of the factors.
            base_digest: Digest of the base model.
            rank: Rank of the factors.
            metadata: Kept beside them.
            write: Writes the PEFT files into the folder it is given.

        Raises:
            AdapterError: A name is not allowed, or the version exists with other content.
        """
        check_name("adapter name", adapter)
        check_name("version label", label)
        version = VersionId(f"{adapter}@{label}")
        with self._publishing:
            known = self._find(version)
            if known is not None:
                if (known.digest, known.base_digest) != (digest, base_digest):
                    raise AdapterError(f"version {version} exists already with other content")
                return known
            published = PublishedVersion(
                version=version,
                adapter=adapter,
                label=label,
                digest=digest,
                base_digest=base_digest,
                rank=rank,
                metadata=dict(metadata),
                published_at_s=self._now_s(),
                folder=self._folder(adapter, label),
            )
            if published.folder.exists():  # an earlier attempt ended before its row was written
                shutil.rmtree(published.folder)
            create_folder(published.folder, write)
            self._acknowledge(published)
            self._prune(adapter)
            return published

    def published(self, adapter: str | None = None) -> tuple[PublishedVersion, ...]:
        """Return the versions of an adapter, or of all, in order of publication."""
        rows = self._database.query(
            "SELECT * FROM versions WHERE ?1 IS NULL OR adapter = ?1 ORDER BY id", (adapter,)
        )
        return tuple(self._from_row(row) for row in rows)

    def get(self, version: VersionId) -> PublishedVersion:
        """Return one version; raises ``UnknownAdapterError``, which lists those there are."""
        found = self._find(version)
        if found is None:
            names = ", ".join(item.version for item in self.published()) or "none"
            raise UnknownAdapterError(f"version {version!r} does not exist; published: {names}")
        return found

    def _acknowledge(self, published: PublishedVersion) -> None:
        """Write the row of a complete folder and count its number."""
        is_number = _NUMBER.fullmatch(published.label)
        next_number = int(published.label) + 1 if is_number else 1
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO versions (version, adapter, label, digest, base_digest, rank, "
                "metadata, published_at_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    published.version,
                    published.adapter,
                    published.label,
                    published.digest,
                    published.base_digest,
                    published.rank,
                    json.dumps(published.metadata),
                    published.published_at_s,
                ),
            )
            connection.execute(
                "INSERT INTO adapters (name, next_number) VALUES (?, ?) ON CONFLICT (name) "
                "DO UPDATE SET next_number = max(next_number, excluded.next_number)",
                (published.adapter, next_number),
            )

    def _prune(self, adapter: str) -> None:
        """Remove the rows of versions not to keep, then their folders."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                "DELETE FROM versions WHERE adapter = ?1 AND id NOT IN "
                "(SELECT id FROM versions WHERE adapter = ?1 ORDER BY id DESC LIMIT ?2) "
                "AND NOT EXISTS "
                "(SELECT 1 FROM adapters WHERE name = ?1 AND version IN (active, held)) "
                "AND version NOT IN (SELECT version FROM pins) "
                "RETURNING label",
                (adapter, self._max_versions),
            ).fetchall()
        for row in rows:
            shutil.rmtree(self._folder(adapter, row["label"]))

    def _remove_garbage(self) -> None:
        for adapter_folder in self._root.glob("*"):
            remove_remains(adapter_folder)
        known = {published.folder for published in self.published()}
        for folder in self._root.glob("*/*"):
            if folder.is_dir() and folder not in known:
                _log.warning("%s belongs to no published version; removing it", folder)
                shutil.rmtree(folder)

    def _find(self, version: VersionId) -> PublishedVersion | None:
        rows = self._database.query("SELECT * FROM versions WHERE version = ?", (version,))
        return self._from_row(rows[0]) if rows else None

    def _from_row(self, row: sqlite3.Row) -> PublishedVersion:
        return PublishedVersion(
            version=row["version"],
            adapter=row["adapter"],
            label=row["label"],
            digest=row["digest"],
            base_digest=row["base_digest"],
            rank=row["rank"],
            metadata=json.loads(row["metadata"]),
            published_at_s=row["published_at_s"],
            folder=self._folder(row["adapter"], row["label"]),
        )

    def _folder(self, adapter: str, label: str) -> Path:
        return self._root / adapter / label
