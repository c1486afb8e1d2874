"""Notice when the parent has written the endpoints file anew."""

import logging
from pathlib import Path

from collm.cluster.endpoints import Endpoint, read_endpoints
from collm.errors import DataError

_log = logging.getLogger(__name__)


class EndpointsWatch:
    """Reads the file when it has changed.

    Args:
        path: Where the parent writes it; need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None

    def read_if_changed(self) -> tuple[Endpoint, ...] | None:
        """Return the endpoints if the file is another than at the last call, else ``None``.

        A file that is missing or malformed changes nothing: replicas are told by their answers.
        """
        try:
            status = self._path.stat()
        except OSError:
            return None
        seen = (status.st_mtime_ns, status.st_ino, status.st_size)
        if seen == self._seen:
            return None
        self._seen = seen
        try:
            return read_endpoints(self._path)
        except DataError as error:
            _log.warning("endpoints not read: %s", error)
            return None
