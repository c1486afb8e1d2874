"""A front with scripted replicas, in a thread of its own: a browser is driven beside it."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from factories.dashboard import ShownReplica
from factories.front_server import FrontServer, running_front

_LOOK_S = 0.25


class DashboardFront:
    """Can be stopped, and started again at the same address, which stays its own."""

    def __init__(self, replicas: Mapping[str, ShownReplica], **settings: Any) -> None:
        self.replicas = replicas
        self._settings = settings
        self._address = _reserved_address()
        self._port = self._address.getsockname()[1]
        self._thread: threading.Thread | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        assert self._ready.wait(10)

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        scripts = {name: replica.script for name, replica in self.replicas.items()}
        async with running_front(
            scripts, port=self._port, has_dashboard=True, **self._settings
        ) as server:
            self.server = server
            self._ready.set()
            refreshing = asyncio.create_task(_refresh(server))
            await self._stop.wait()
            refreshing.cancel()

    def call(self, act: Callable[[FrontServer], None]) -> None:
        """Do something in the front's own thread."""
        self._loop.call_soon_threadsafe(act, self.server)

    def stop(self) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(20)
            assert not self._thread.is_alive()
            self._thread = None

    def close(self) -> None:
        self.stop()
        self._address.close()


async def _refresh(server: FrontServer) -> None:
    while True:
        server.clock.advance(_LOOK_S)
        await server.front.registry.refresh()
        await asyncio.sleep(_LOOK_S)


def _reserved_address() -> socket.socket:
    """Return a socket that never listens, so that no one else is given its port meanwhile.

    A listener of this port may be bound beside it, for both allow the address to be used again.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    return sock


@contextmanager
def dashboard_front(
    replicas: Mapping[str, ShownReplica] | None = None, **settings: Any
) -> Iterator[DashboardFront]:
    """Serve; two replicas unless told otherwise."""
    front = DashboardFront(replicas or {"r0": ShownReplica(), "r1": ShownReplica()}, **settings)
    try:
        front.start()
        yield front
    finally:
        front.close()
