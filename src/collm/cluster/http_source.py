"""Ask over HTTP: replicas for their snapshots, anybody for a sign of life."""

import httpx

from collm.cluster.endpoints import Endpoint
from collm.errors import UnreachableError

_MAX_BYTES = 1 << 20
"""A longer answer is no snapshot."""


class HttpSnapshotSource:
    """``SnapshotSource`` over a shared client, which stays its owner's.

    Args:
        client: Keeps connections open; the registry bounds the time of each call.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def fetch(self, endpoint: Endpoint) -> object:
        """Return the parsed JSON of ``GET /control/state``.

        Raises:
            UnreachableError: No connection, no whole answer, a status that is no success, or no
                JSON.
        """
        try:
            response = await self._client.get(f"{endpoint.url.rstrip('/')}/control/state")
            response.raise_for_status()
            if len(response.content) > _MAX_BYTES:
                raise ValueError(f"{len(response.content)} bytes are too many")
            value: object = response.json()
        except (httpx.HTTPError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"{endpoint.url}: {reason}") from error
        return value

    async def reach(self, endpoint: Endpoint) -> None:
        """Return when a server answers, whatever it says; ``UnreachableError`` if none does."""
        try:
            await self._client.get(f"{endpoint.url.rstrip('/')}/health")
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"{endpoint.url}: {reason}") from error
