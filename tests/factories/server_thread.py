"""A real HTTP server on a free loopback port, in a thread."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from collm.server.app import make_app
from collm.server.backend import Backends, Replica
from collm.server.config import ServerConfig
from collm.server.run import bind, serve
from collm.server.service import Membership
from factories.fake_backends import fake_backends
from factories.ports import reserved_address
from factories.waiting import WAIT_S


class ServerThread:
    def __init__(
        self, backends: Backends, config: ServerConfig, membership: Membership | None = None
    ) -> None:
        self._app = make_app(backends, config, membership)
        self._sock = bind(config)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self.url = ""
        self.error: BaseException | None = None

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            await serve(self._app, self._sock, self._stop, self._on_ready)
        except BaseException as error:
            self.error = error
        finally:
            self._ready.set()

    def _on_ready(self, url: str) -> None:
        self.url = url
        self._ready.set()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        if not self.url:
            raise self.error or AssertionError("it is not ready")

    def ask_to_stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop is closed: it ends already
            self._loop.call_soon_threadsafe(self._stop.set)

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


@contextmanager
def running_server(
    served: Backends | Replica, membership: Membership | None = None, **settings: object
) -> Iterator[ServerThread]:
    """Serve; a replica alone gets fakes for everything else.

    The port stays the server's own when that has ended.
    """
    backends = served if isinstance(served, Backends) else fake_backends(served)
    with reserved_address() as address:
        config = ServerConfig(port=address.getsockname()[1], **settings)  # type: ignore[arg-type]
        server = ServerThread(backends, config, membership)
        try:
            server.start()
            yield server
        finally:
            if server.error is None:
                server.ask_to_stop()
            server.join()
