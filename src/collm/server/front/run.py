"""Run the front: serve, follow the replicas, and drain when told to stop."""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI

from collm.errors import CollmError
from collm.server.config import ServerConfig
from collm.server.front.front import Front
from collm.server.front.watching import watch
from collm.server.run import bind, serve_app, stop_on_signals

Loop = Callable[[], Coroutine[Any, Any, Any]]
"""Starts something that goes on until it is cancelled, such as ``Registry.run``."""


class _Served:
    """A front and the loops beside it, as ``server.run.Served``."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self.config: ServerConfig = front.config
        self.is_alive = True

    @property
    def num_open(self) -> int:
        return self._front.num_open

    def end_open(self) -> None:
        self._front.end_open()


def run_front(
    app: FastAPI,
    on_ready: Callable[[str], None],
    loops: Sequence[Loop],
    listener: socket.socket | None = None,
) -> None:
    """Serve in the main thread until SIGTERM or SIGINT; a second signal stops waiting.

    Args:
        app: Made by ``make_front_app``.
        on_ready: Called once with the server's URL, when connections are accepted.
        loops: What runs beside it, and makes the front end when it fails.
        listener: A bound socket, closed at the end; ``None`` binds the configured address.

    Raises:
        ConfigError: The address cannot be had.
        CollmError: One of the loops failed; the cause says how.
    """
    sock = bind(app.state.front.config) if listener is None else listener

    async def main() -> None:
        stop = stop_on_signals(_Served(app.state.front))
        await serve_front(app, sock, stop, on_ready, loops)

    asyncio.run(main())


async def serve_front(
    app: FastAPI,
    sock: socket.socket,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
    loops: Sequence[Loop],
) -> None:
    """Serve until ``stop`` is set, or a loop fails, then drain.

    Args:
        app: Made by ``make_front_app``.
        sock: A bound socket; closed at the end.
        stop: Asks for the end: no new connections, open answers go on up to the drain limit.
        on_ready: Called once with the server's URL, when connections are accepted.
        loops: What runs beside it.

    Raises:
        CollmError: One of the loops failed; the cause says how.
    """
    front: Front = app.state.front
    served = _Served(front)

    def note_end(task: "asyncio.Task[Any]") -> None:
        served.is_alive = served.is_alive and (task.cancelled() or task.exception() is None)

    starts: list[Loop] = [partial(watch, front), *loops]
    tasks = [asyncio.create_task(start()) for start in starts]
    for task in tasks:
        task.add_done_callback(note_end)
    try:
        await serve_app(app, served, sock, stop, on_ready)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        front.pool.cut_all()
    failures = [result for result in results if isinstance(result, Exception)]
    if failures:
        raise CollmError(f"the front cannot go on: {failures[0]}") from failures[0]
