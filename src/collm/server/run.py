"""Run the application: bind, say so, serve, and drain when told to stop."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Protocol

import uvicorn
from fastapi import FastAPI

from collm.errors import CollmError, ConfigError
from collm.server.config import ServerConfig
from collm.server.dashboard.dashboard import Dashboard
from collm.server.service import Service

_log = logging.getLogger(__name__)

_BACKLOG = 2048
_ALIVE_POLL_S = 0.5
_LAST_WORDS_S = 2.0
"""Time for the error events that end what the drain limit cut off."""


class _Server(uvicorn.Server):
    """Leaves signals to ``run``; uvicorn would raise them again after a clean end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(config: ServerConfig) -> socket.socket:
    """Return a bound socket; raises ``ConfigError`` when the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"server.host, server.port: cannot listen on {config.host}:{config.port}: "
            f"{error.strerror or error}; choose another port, or 0 for a free one"
        ) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """Return the address that clients of this machine use."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Served(Protocol):
    """What is behind an application, as far as starting and stopping go."""

    @property
    def config(self) -> ServerConfig:
        """The listener's settings."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether it can still answer; when not, there is no use in going on."""
        ...

    @property
    def num_open(self) -> int:
        """Answers under way."""
        ...

    def end_open(self) -> None:
        """End every answer under way, each with words that say why."""
        ...


class _Replica:
    """A replica's service, as ``Served``."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.config = service.config

    @property
    def is_alive(self) -> bool:
        return self._service.replica.is_alive

    @property
    def num_open(self) -> int:
        return len(self._service.open_ids)

    def end_open(self) -> None:
        for request_id in tuple(self._service.open_ids):
            self._service.replica.abort(request_id)


async def serve(
    app: FastAPI, sock: socket.socket, stop: asyncio.Event, on_ready: Callable[[str], None]
) -> None:
    """Serve a replica until ``stop`` is set, then drain.

    Args:
        app: Made by ``make_app``.
        sock: A bound socket; closed at the end.
        stop: Asks for the end: no new connections, open answers go on up to the drain limit.
        on_ready: Called once with the server's URL, when connections are accepted.

    Raises:
        CollmError: The replica's step loop ended by itself.
    """
    replica = _Replica(app.state.service)
    await serve_app(app, replica, sock, stop, on_ready)
    if not replica.is_alive and not stop.is_set():
        raise CollmError("the replica's step loop ended by itself; its log says why")


async def serve_app(
    app: FastAPI,
    served: Served,
    sock: socket.socket,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until ``stop`` is set or nothing can be served any more, then drain.

    Args:
        app: Answers the calls.
        served: What is behind it.
        sock: A bound socket; closed at the end.
        stop: Asks for the end: no new connections, open answers go on up to the drain limit.
        on_ready: Called once with the server's URL, when connections are accepted.
    """
    config = served.config
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="info" if config.access_log else "warning",
            access_log=config.access_log,
            lifespan="off",
            backlog=_BACKLOG,
            server_header=False,
            # A backstop only: the drain limit below ends answers in good order before this.
            timeout_graceful_shutdown=int(config.drain_timeout_s + _LAST_WORDS_S) + 1,
        )
    )
    url = url_of(sock)
    running = asyncio.create_task(server.serve(sockets=[sock]))
    watching = asyncio.create_task(_watch(served, stop))
    showing = asyncio.create_task(_show(app.state.dashboard))
    try:
        while not server.started and not running.done():
            await asyncio.sleep(0.01)
        if not running.done():
            _log.info("listening on %s", url)
            on_ready(url)
            await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        showing.cancel()  # whoever watches would go on for as long as draining may take
        await _drain(served, running)
    finally:
        watching.cancel()
        showing.cancel()
        server.should_exit = True
        await asyncio.gather(watching, showing, return_exceptions=True)
        await running
        sock.close()


async def _watch(served: Served, stop: asyncio.Event) -> None:
    """Return when asked to stop, or when nothing can be served any more."""
    while served.is_alive:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _ALIVE_POLL_S)
            return


async def _show(dashboard: Dashboard | None) -> None:
    """Let a server's dashboard collect until this is cancelled, if it has one."""
    if dashboard is not None:
        await dashboard.run()


async def _drain(served: Served, running: "asyncio.Task[None]") -> None:
    _log.info("stopping; %d open answers may go on", served.num_open)
    done, _ = await asyncio.wait((running,), timeout=served.config.drain_timeout_s)
    if not done:
        _log.warning("drain limit reached; ending %d answers", served.num_open)
        served.end_open()


def run(app: FastAPI, on_ready: Callable[[str], None], sock: socket.socket | None = None) -> None:
    """Serve a replica in the main thread until SIGTERM or SIGINT; a second signal stops waiting.

    Args:
        app: Made by ``make_app``.
        on_ready: Called once with the server's URL, when connections are accepted.
        sock: A bound socket, closed at the end; ``None`` binds to the configured address.

    Raises:
        ConfigError: The address cannot be had.
        CollmError: The replica's step loop ended by itself.
    """
    service: Service = app.state.service
    asyncio.run(_serve_until_signal(app, sock or bind(service.config), on_ready))


async def _serve_until_signal(
    app: FastAPI, sock: socket.socket, on_ready: Callable[[str], None]
) -> None:
    await serve(app, sock, stop_on_signals(_Replica(app.state.service)), on_ready)


def stop_on_signals(served: Served) -> asyncio.Event:
    """Return what the first SIGTERM or SIGINT sets; a second one ends what is still open."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            served.end_open()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop
