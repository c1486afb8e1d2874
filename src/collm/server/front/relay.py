"""A replica's answer on its way to the client: as it comes, or as a whole."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from collm.server.disconnects import until_disconnect
from collm.server.errors import ClientGoneError, ErrorReply
from collm.server.front.calls import passed_headers
from collm.server.front.errors import UpstreamError
from collm.server.front.pool import Exchange

_log = logging.getLogger(__name__)

EVENT_STREAM = b"text/event-stream"


async def send_whole(
    send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    """Send an answer that is there as a whole."""
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_start(send: Send, exchange: Exchange, replica_id: str) -> None:
    """Send the head of an answer whose body follows."""
    headers = passed_headers(exchange.head, replica_id)
    await send({"type": "http.response.start", "status": exchange.head.status, "headers": headers})


async def send_events(send: Send, exchange: Exchange, first: bytes) -> None:
    """Pass on a stream of events whose head has been sent; each event leaves as a whole.

    Args:
        send: The client's side.
        exchange: The replica's side.
        first: What has been read of the stream.

    Raises:
        UpstreamError: The stream broke off; nothing of the event that it was in has been sent.
    """
    data, held = first, b""
    while data:
        if held:
            data, held = held + data, b""
        if not data.endswith(b"\n\n"):
            *whole, held = data.rpartition(b"\n\n")
            data = b"".join(whole)
        if data:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        data = await exchange.read()
    await send({"type": "http.response.body", "body": held, "more_body": False})


async def send_last_event(send: Send, reply: ErrorReply) -> None:
    """End a stream with an event that says why it ends."""
    event = f"data: {json.dumps(reply.body())}\n\n".encode()
    await send({"type": "http.response.body", "body": event, "more_body": False})


class RelayedResponse(Response):
    """Passes on an answer of any kind and length; whatever ends it, the exchange is closed."""

    def __init__(self, exchange: Exchange, replica_id: str) -> None:
        self.status_code = exchange.head.status
        self.background = None
        self._exchange = exchange
        self._replica_id = replica_id
        self.raw_headers = passed_headers(exchange.head, replica_id)
        length = exchange.head.get(b"content-length")
        if length:
            self.raw_headers.append((b"content-length", length))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer (ASGI)."""
        try:
            await until_disconnect(receive, self._send_all(send))
        except ClientGoneError:
            pass
        finally:
            self._exchange.close()

    async def _send_all(self, send: Send) -> None:
        message: Mapping[str, Any] = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **message})
        try:
            while piece := await self._exchange.read():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except UpstreamError as error:
            _log.warning("replica %s: an answer broke off: %s", self._replica_id, error)
            return  # without its promised end, the client sees that something is missing
        await send({"type": "http.response.body", "body": b"", "more_body": False})
