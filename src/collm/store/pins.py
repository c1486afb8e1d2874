"""Versions that an operator wants kept, however old."""

from collm.errors import UnknownAdapterError
from collm.store.database import Database
from collm.types import VersionId


class PinStore:
    """Owner of the operator's pins. Any thread may use it; a pinned version stays on disk."""

    def __init__(self, database: Database) -> None:
        """Keep pins in ``database``, beside the versions."""
        self._database = database

    def add(self, version: VersionId) -> None:
        """Pin a version; no effect if it is pinned already.

        Raises:
            UnknownAdapterError: The version is not published.
        """
        with self._database.transaction() as connection:
            known = connection.execute(
                "SELECT 1 FROM versions WHERE version = ?", (version,)
            ).fetchone()
            if known is None:
                raise UnknownAdapterError(f"version {version!r} is not published")
            connection.execute(
                "INSERT INTO pins (version) VALUES (?) ON CONFLICT DO NOTHING", (version,)
            )

    def remove(self, version: VersionId) -> None:
        """Unpin a version, which the next publication may then drop; no effect without a pin."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM pins WHERE version = ?", (version,))

    def all(self) -> tuple[VersionId, ...]:
        """Return the pinned versions in order of publication."""
        rows = self._database.query(
            "SELECT version FROM pins JOIN versions USING (version) ORDER BY versions.id"
        )
        return tuple(row["version"] for row in rows)
