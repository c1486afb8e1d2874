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
    """Can be stopped, and started again at the same address."""

    def __init__(self, replicas: Mapping[str, ShownReplica], **settings: Any) -> None:
        self.replicas = replicas
        self._settings = settings
        self._port = _free_port()
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


async def _refresh(server: FrontServer) -> None:
    while True:
        server.clock.advance(_LOOK_S)
        await server.front.registry.refresh()
        await asyncio.sleep(_LOOK_S)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def dashboard_front(
    replicas: Mapping[str, ShownReplica] | None = None, **settings: Any
) -> Iterator[DashboardFront]:
    """Serve; two replicas unless told otherwise."""
    front = DashboardFront(replicas or {"r0": ShownReplica(), "r1": ShownReplica()}, **settings)
    front.start()
    try:
        yield front
    finally:
        front.stop()
