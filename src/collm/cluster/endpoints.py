"""The file in which the parent says where its replicas listen: both sides of its format.

The parent alone writes it, each time whole; fronts read it, so that one that starts anew finds the
replicas that the one before it had.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collm.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A replica that said it was ready."""

    replica_id: str
    url: str
    """Where its own HTTP server listens, without a path."""
    pid: int
    started_at_s: float
    """When its process was started, seconds since 1970; tells a restarted replica apart."""


def write_endpoints(path: Path, endpoints: Iterable[Endpoint]) -> None:
    """Replace the file, so that a reader sees the old content or the new one."""
    rows = [
        {
            "id": endpoint.replica_id,
            "url": endpoint.url,
            "pid": endpoint.pid,
            "started_at_s": endpoint.started_at_s,
        }
        for endpoint in endpoints
    ]
    # Not flushed to the disk: after a loss of power none of these processes is left.
    staged = path.with_name(f".new-{path.name}")
    staged.write_text(json.dumps({"replicas": rows}, indent=2) + "\n", encoding="utf-8")
    os.replace(staged, path)


def read_endpoints(path: Path) -> tuple[Endpoint, ...]:
    """Return the replicas in the file; none when it does not exist.

    Raises:
        DataError: It cannot be read, or has another form.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    try:
        return tuple(_endpoint(row) for row in json.loads(text)["replicas"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(
            f"{path} is no list of replicas: {type(error).__name__}: {error}"
        ) from error


def _endpoint(row: Any) -> Endpoint:
    return Endpoint(
        replica_id=str(row["id"]),
        url=str(row["url"]),
        pid=int(row["pid"]),
        started_at_s=float(row["started_at_s"]),
    )
