"""One HTTP/1.1 connection to a replica: a request out, the response's pieces in, as they come."""

import asyncio
from collections.abc import AsyncIterable
from typing import cast

from collm.server.front.errors import NotReachedError, UpstreamError
from collm.server.front.framing import ResponseHead, ResponseReader

_MAX_BUFFERED_BYTES = 256 * 1024
"""A client that reads more slowly than its replica sends holds the replica back beyond this."""


class Connection(asyncio.Protocol):
    """Carries one exchange at a time; one task at a time waits for its news.

    Between two exchanges it may rest; ``can_be_reused`` says whether it still can serve another.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader = ResponseReader()
        self._pieces: list[bytes] = []
        self._num_buffered = 0
        self._is_paused = False
        self._failure: UpstreamError | None = None
        self._is_open = False
        self._waiter: asyncio.Future[None] | None = None
        self._can_write = asyncio.Event()
        self._is_sent = False
        """Whether all of the request has left."""
        self.is_idle = True
        """Whether no exchange is under way."""
        self.has_answered = False
        """Whether anything of the current exchange's response has come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport (asyncio)."""
        self._transport = cast(asyncio.Transport, transport)
        self._is_open = True
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        """Take bytes of the response (asyncio)."""
        self.has_answered = True
        if self.is_idle:
            self.abort()  # nobody asked
            return
        try:
            piece = self._reader.feed(data)
        except UpstreamError as error:
            self._fail(error)
            self.abort()
            return
        if piece:
            self._pieces.append(piece)
            self._num_buffered += len(piece)
            if self._num_buffered > _MAX_BUFFERED_BYTES and not self._is_paused:
                self._is_paused = True
                self._open_transport().pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take the end of the connection (asyncio)."""
        self._is_open = False
        self._can_write.set()
        if self.is_idle:
            return
        try:
            if exc is not None and not self._reader.is_complete:
                raise UpstreamError(f"the connection broke: {exc}")
            self._reader.feed_eof()
        except UpstreamError as error:
            self._fail(error)
        self._wake()

    def pause_writing(self) -> None:
        """Take that the peer does not read fast enough (asyncio)."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """Take that the peer has caught up (asyncio)."""
        self._can_write.set()

    async def send(self, head: bytes, body: bytes | AsyncIterable[bytes]) -> None:
        """Start an exchange.

        Args:
            head: Request line and headers, to the empty line.
            body: As long as the head says.

        Raises:
            UpstreamError: The connection is gone.
        """
        assert self.is_idle
        self._reader = ResponseReader()
        self.is_idle = self.has_answered = self._is_sent = False
        if not self._is_open:
            raise UpstreamError("the connection is gone")
        if isinstance(body, bytes):
            self._open_transport().write(head + body)
        else:
            self._open_transport().write(head)
            async for piece in body:
                await self._can_write.wait()
                if not self._is_open or self._reader.head is not None:
                    return  # answered before all was read: refused, most likely
                self._open_transport().write(piece)
        self._is_sent = True

    async def head(self) -> ResponseHead:
        """Wait for the response's head; raises ``UpstreamError`` when there will be none."""
        while self._reader.head is None:
            await self._news()
        return self._reader.head

    async def read(self) -> bytes:
        """Return what has come of the body, waiting for some.

        Returns:
            At least one byte, or none at the body's end.

        Raises:
            UpstreamError: The body broke off; all that came of it has been returned.
        """
        while not self._pieces:
            if self._reader.is_complete:
                self._finish()
                return b""
            await self._news()
        pieces, self._pieces = self._pieces, []
        self._num_buffered = 0
        if self._is_paused:
            self._is_paused = False
            if self._is_open:
                self._open_transport().resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def can_be_reused(self) -> bool:
        """Whether another exchange may be started."""
        return self._is_open and self.is_idle and not self._open_transport().is_closing()

    def abort(self) -> None:
        """Close at once, whatever is under way; whoever waits is told."""
        if not self._reader.is_complete:
            self._fail(UpstreamError("the connection was given up"))
        if self._is_open:
            self._open_transport().abort()

    def _finish(self) -> None:
        self.is_idle = True
        head = self._reader.head
        assert head is not None
        if not self._is_sent or head.get(b"connection").lower() == b"close":
            self.abort()

    def _open_transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    async def _news(self) -> None:
        if self._failure is not None:
            raise self._failure
        assert self._waiter is None
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _fail(self, error: UpstreamError) -> None:
        self._failure = self._failure or error

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def connect(host: str, port: int, timeout_s: float) -> Connection:
    """Open a connection; raises ``NotReachedError`` when that fails or takes too long."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(Connection, host, port)
    except (OSError, TimeoutError) as error:
        raise NotReachedError(f"cannot connect to {host}:{port}: {error}") from error
    return connection
