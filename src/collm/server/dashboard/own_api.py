"""The server's own routes, asked without a connection: the page shows what clients are told."""

import asyncio
import json
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

_TIMEOUT_S = 6.0
"""A little longer than a front waits for its replicas."""


class OwnApi:
    """Asks an application.

    Args:
        app: The whole of it, error handlers included.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def get(self, target: str) -> Any:
        """Return the JSON of a route's answer; ``None`` for an error, or without an answer.

        Args:
            target: Path and query, percent-encoded.
        """
        path, _, query = target.partition("?")
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [],
            "client": None,
            "server": None,
        }
        answer = _Answer()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._app(scope, answer.receive, answer.send)
            return json.loads(answer.body) if answer.status < 400 else None
        except (TimeoutError, ValueError):
            return None


class _Answer:
    """A client that sends nothing and never leaves."""

    def __init__(self) -> None:
        self.status = 500
        self.body = b""

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")
