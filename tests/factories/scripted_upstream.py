"""A replica's HTTP side as a script of bytes, in the test's own event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from collm.cluster.endpoints import Endpoint
from factories.ports import reserved_address

Script = Callable[["Line"], Awaitable[None]]
"""Answers one request; returning leaves the connection open for the next."""


@dataclass
class Seen:
    """One request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Line:
    """One connection, while a request on it is answered."""

    def __init__(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.seen = seen
        self._reader = reader
        self._writer = writer

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def whole(self, body: bytes, *, status: int = 200, kind: str = "application/json"):
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
        await self.raw(head.encode() + b"\r\n" + body)

    async def start_stream(self) -> None:
        await self.raw(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"x-collm-version: base\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.raw(b"0\r\n\r\n")

    def die(self) -> None:
        """Drop the connection as a killed process does; what was sent still arrives."""
        self._writer.close()

    async def client_left(self) -> None:
        """Wait until the other side has closed the connection."""
        while await self._reader.read(1024):
            pass


@dataclass
class ScriptedUpstream:
    """Listens on a free loopback port, plays its script, and remembers what it was asked."""

    name: str
    script: Script
    seen: list[Seen] = field(default_factory=list)
    num_connections: int = 0
    endpoint: Endpoint = field(init=False)

    async def start(self) -> None:
        self._address = reserved_address()
        port = self._address.getsockname()[1]
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.endpoint = Endpoint(
            replica_id=self.name, url=f"http://127.0.0.1:{port}", pid=1, started_at_s=0.0
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                seen = await _read_request(reader)
                self.seen.append(seen)
                await self.script(Line(seen, reader, writer))
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # asyncio would log a cancelled connection as an error
        finally:
            self._tasks.discard(task)
            writer.close()

    def refuse(self) -> None:
        """Accept no more connections."""
        self._server.close()

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._address.close()


async def _read_request(reader: asyncio.StreamReader) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Seen(method, target, headers, body)
