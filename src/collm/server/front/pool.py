"""Connections to the replicas, kept open between calls."""

from collections import defaultdict
from collections.abc import Collection
from urllib.parse import urlsplit

from collm.clock import Clock
from collm.server.front.calls import Call
from collm.server.front.connection import Connection, connect
from collm.server.front.errors import UpstreamError
from collm.server.front.framing import ResponseHead

_CONNECT_TIMEOUT_S = 1.0
"""As long as a replica may stay silent before it counts as dead."""
_IDLE_LIMIT_S = 4.0
"""A replica closes a connection that has rested for 5 s; ours must be the first to let go."""


class Exchange:
    """One call under way: the answer's head is there, the body is to be read.

    Whoever holds one closes it, however it ends.
    """

    def __init__(
        self, pool: "ConnectionPool", url: str, connection: Connection, head: ResponseHead
    ) -> None:
        self._pool = pool
        self._url = url
        self._connection = connection
        self.head = head

    async def read(self) -> bytes:
        """Return some of the body, or nothing at its end; raises ``UpstreamError``."""
        return await self._connection.read()

    async def read_all(self) -> bytes:
        """Return the rest of the body; raises ``UpstreamError``."""
        pieces = []
        while piece := await self._connection.read():
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Keep the connection for another call, or cut it when this one has not ended."""
        self._pool.give_back(self._url, self._connection)


class ConnectionPool:
    """Owner of all connections to replicas, each known by the replica's URL."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._idle: defaultdict[str, list[tuple[Connection, float]]] = defaultdict(list)
        """With the time since when, the longest first."""
        self._busy: defaultdict[str, set[Connection]] = defaultdict(set)

    async def start(self, url: str, call: Call) -> Exchange:
        """Send a call and wait for the head of its answer.

        Raises:
            NotReachedError: No connection could be made.
            UpstreamError: The replica went before it answered.
        """
        if call.is_repeatable:
            connection = self._take_idle(url)
            if connection is not None:
                try:
                    return await self._start(url, connection, call)
                except UpstreamError:
                    if connection.has_answered:
                        raise  # otherwise it may have been closed in the very moment
        parts = urlsplit(url)
        assert parts.hostname is not None, url
        fresh = await connect(parts.hostname, parts.port or 80, _CONNECT_TIMEOUT_S)
        return await self._start(url, fresh, call)

    def give_back(self, url: str, connection: Connection) -> None:
        """Take a connection whose call is over, well or not."""
        self._busy[url].discard(connection)
        if connection.can_be_reused:
            self._idle[url].append((connection, self._clock.now_s()))
        else:
            connection.abort()

    def cut(self, url: str) -> int:
        """Break off every call to a replica, which raises ``UpstreamError``; return how many."""
        busy = tuple(self._busy.get(url, ()))
        for connection in busy:
            connection.abort()
        return len(busy)

    def keep_only(self, urls: Collection[str]) -> None:
        """Forget replicas that are no more; calls to them that are under way go on."""
        for url in [url for url in self._idle if url not in urls]:
            _abort_all(self._idle.pop(url))
        for url in [url for url, busy in self._busy.items() if url not in urls and not busy]:
            del self._busy[url]

    def cut_all(self) -> None:
        """Break off every call, and close what rests."""
        for url in tuple(self._busy):
            self.cut(url)
        self.keep_only(())

    def _take_idle(self, url: str) -> Connection | None:
        resting = self._idle[url]
        while resting:
            connection, since_s = resting.pop()
            if since_s < self._clock.now_s() - _IDLE_LIMIT_S:
                connection.abort()
                _abort_all(resting)  # they have rested for longer still
                resting.clear()
            elif connection.can_be_reused:
                return connection
        return None

    async def _start(self, url: str, connection: Connection, call: Call) -> Exchange:
        self._busy[url].add(connection)
        try:
            await connection.send(call.head, call.body)
            return Exchange(self, url, connection, await connection.head())
        except BaseException:
            self._busy[url].discard(connection)
            connection.abort()
            raise


def _abort_all(resting: list[tuple[Connection, float]]) -> None:
    for connection, _ in resting:
        connection.abort()
