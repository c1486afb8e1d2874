"""A front with scripted replicas, in a thread of its own: a browser is driven beside it."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from factories.dashboard import ShownReplica
from factories.front_server import FrontServer, running_front
from factories.ports import reserved_address
from factories.waiting import WAIT_S

_LOOK_S = 0.25


class DashboardFront:
    """Can be stopped, and started again at the same address, which stays its own."""

    def __init__(self, replicas: Mapping[str, ShownReplica], **settings: Any) -> None:
        self.replicas = replicas
        self._settings = settings
        self._address = reserved_address()
        self._port = self._address.getsockname()[1]
        self._thread: threading.Thread | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        ready: Future[FrontServer] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        self.server = ready.result(WAIT_S)

    def _run(self, ready: "Future[FrontServer]") -> None:
        try:
            asyncio.run(self._main(ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _main(self, ready: "Future[FrontServer]") -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        scripts = {name: replica.script for name, replica in self.replicas.items()}
        async with running_front(
            scripts, port=self._port, has_dashboard=True, **self._settings
        ) as server:
            ready.set_result(server)
            refreshing = asyncio.create_task(_refresh(server))
            await self._stop.wait()
            refreshing.cancel()

    def call(self, act: Callable[[FrontServer], None]) -> None:
        """Do something in the front's own thread, and wait until it is done."""
        done: Future[None] = Future()

        def do() -> None:
            try:
                done.set_result(act(self.server))
            except Exception as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(do)
        done.result(WAIT_S)

    def stop(self) -> None:
        if self._thread is not None:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(WAIT_S)
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
