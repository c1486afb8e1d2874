"""Server-sent events (WHATWG HTML, section 9.2) and the response that sends them."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from collm.server.dashboard.watchers import Watcher, Watchers
from collm.server.disconnects import until_disconnect
from collm.server.errors import ClientGoneError

HEARTBEAT_S = 10.0
"""Silence after which a comment says that the connection lives."""
_HEARTBEAT = b": still here\n\n"
_PIECE_BYTES = 64 * 1024
"""How much is handed to a connection at once: what a slow reader may have waiting there."""

_LAST_S = 0.2
"""Time for the end of a stream to be taken."""


def event(name: str, data: bytes) -> bytes:
    """Return one event; ``data`` is JSON in one line."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


class EventStream(Response):
    """Sends a watcher what there is, then what comes, until it leaves or is dropped.

    Args:
        watchers: Whom to join.
        first: Makes the events that it begins with; called when it has joined, so that nothing
            falls between them and the next.
    """

    media_type = "text/event-stream"

    def __init__(self, watchers: Watchers, first: Callable[[], list[bytes]]) -> None:
        super().__init__(headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._watchers = watchers
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream (ASGI); raises ``UnavailableError`` before anything was sent."""
        with self._watchers.joined() as watcher, suppress(ClientGoneError):
            await until_disconnect(receive, self._until_dropped(watcher, send))

    async def _until_dropped(self, watcher: Watcher, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(watcher, send))
        dropping = asyncio.create_task(watcher.is_dropped.wait())
        try:
            await asyncio.wait((sending, dropping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, dropping):
                task.cancel()
            await asyncio.gather(sending, dropping, return_exceptions=True)
        with suppress(TimeoutError):  # whoever reads nothing any more sees no end either
            async with asyncio.timeout(_LAST_S):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, watcher: Watcher, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        for data in self._first():
            for begin in range(0, len(data), _PIECE_BYTES):
                await _send_piece(send, data[begin : begin + _PIECE_BYTES])
        while True:
            await _send_piece(send, await watcher.next(HEARTBEAT_S) or _HEARTBEAT)


async def _send_piece(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
