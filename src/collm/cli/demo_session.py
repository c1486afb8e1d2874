"""One run of a demo: a server, a replay against it, and looks at it once a second."""

import asyncio
import contextlib
import shutil
import signal
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import httpx
import yaml

from collm.cli.demo_server import ServerEndedError, ServerProcess
from collm.cli.demo_settings import ADAPTER, DemoSettings
from collm.cli.demo_traffic import Traffic
from collm.clock import Clock
from collm.errors import ConfigError
from collm.metrics.records import RequestRecord
from collm.workload.replay import ReplayTarget, replay

End = Literal["complete", "interrupted", "server ended"]

_LOOK_EVERY_S = 1.0
_LOOK_TIMEOUT_S = 5.0
_REQUEST_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 20.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DATABASES = ("collm.db", "*/collm.db", "*/front.db")
"""What tells a data folder of ours from another, which nobody may delete."""


class Watched(Protocol):
    """Collects what is seen of a run."""

    @property
    def start_s(self) -> float:
        """Return the start of the replay on the clock of the records."""
        ...

    def add(self, record: RequestRecord) -> None:
        """Take in a request that ended."""
        ...


P = TypeVar("P", bound=Watched)
P_contra = TypeVar("P_contra", bound=Watched, contravariant=True)


class View(Protocol[P_contra]):
    """Shows a run while it goes on."""

    def starting(self, last_line: str) -> None:
        """Show that the server is being started, and its latest word."""
        ...

    def started(self, url: str) -> None:
        """Say where the server's page can be watched."""
        ...

    def show(self, progress: P_contra, now_s: float) -> None:
        """Show how things stand ``now_s`` seconds after the start."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene(Generic[P]):
    """What one kind of demo is made of, besides a server and requests to it."""

    begin: Callable[[float], P]
    """Makes what collects, given the start of the replay."""
    look: Callable[[httpx.AsyncClient, P, float], Awaitable[None]]
    """Takes a look at the server, so many seconds after the start."""
    view: View[P]
    acts: tuple[Callable[[httpx.AsyncClient, P], Coroutine[Any, Any, None]], ...] = ()
    """What follows the replay, in order, while the server still runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(Generic[P]):
    """What a run came to."""

    progress: P
    elapsed_s: float
    """Seconds in which requests were sent."""
    end: End
    error: ServerEndedError | None = None
    """How the server ended, if it did by itself."""


def prepare_folder(settings: DemoSettings, configuration: Mapping[str, Any]) -> Path:
    """Make the run's folder, drop the data of an earlier run, write the server's configuration.

    Returns:
        The configuration file.

    Raises:
        ConfigError: The folder cannot be written.
    """
    path = settings.out / "collm.yaml"
    try:
        settings.out.mkdir(parents=True, exist_ok=True)
        if any(True for pattern in _DATABASES for _ in settings.data_dir.glob(pattern)):
            shutil.rmtree(settings.data_dir)
        text = yaml.safe_dump(dict(configuration), sort_keys=False)
        path.write_text("# The server of collm demo: collm serve --config THIS\n" + text)
    except OSError as error:
        raise ConfigError(f"--out {settings.out} cannot be used: {error}") from error
    return path


async def run_session(
    scene: Scene[P],
    traffic: Traffic,
    command: Sequence[str],
    log_path: Path,
    clock: Clock,
) -> Session[P]:
    """Start the server, replay the traffic, stop the server; Ctrl-C ends it early.

    Args:
        scene: The kind of demo.
        traffic: What to replay.
        command: Starts the server.
        log_path: Where its output goes; the folder exists.
        clock: Monotonic time.
    """
    with _stop_on_signals() as stop:
        server = await ServerProcess.start(command, log_path)
        try:
            url = await _wait_until_ready(server, scene.view, stop)
            if url is None:
                return Session(progress=scene.begin(clock.now_s()), elapsed_s=0, end="interrupted")
            scene.view.started(url)
            async with httpx.AsyncClient(
                base_url=url, timeout=_LOOK_TIMEOUT_S, trust_env=False
            ) as client:
                return await _Play(scene, client, server, clock, stop).run(url, traffic)
        except ServerEndedError as error:
            progress = scene.begin(clock.now_s())
            return Session(progress=progress, elapsed_s=0.0, end="server ended", error=error)
        finally:
            await server.stop()


async def _wait_until_ready(
    server: ServerProcess, view: View[P], stop: asyncio.Event
) -> str | None:
    """Return the server's URL; ``None`` when asked to stop before it was ready."""
    ready = asyncio.create_task(server.ready())
    async with _cancelled_after(ready, asyncio.create_task(stop.wait())) as tasks:
        while not any(task.done() for task in tasks):
            view.starting("".join(server.last_lines(1)))
            await asyncio.wait(tasks, timeout=_LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
        return ready.result() if ready.done() else None


class _Play(Generic[P]):
    """A run from the first request to the last look."""

    def __init__(
        self,
        scene: Scene[P],
        client: httpx.AsyncClient,
        server: ServerProcess,
        clock: Clock,
        stop: asyncio.Event,
    ) -> None:
        self._scene = scene
        self._client = client
        self._server = server
        self._clock = clock
        self._stop = stop
        self._progress = scene.begin(clock.now_s())
        self._error: ServerEndedError | None = None

    async def run(self, url: str, traffic: Traffic) -> Session[P]:
        """Replay, then play what follows; whatever ends it early ends all of it."""
        end = await self._until_stopped(self._replay(url, traffic))
        elapsed_s = self._now_s()
        for act in self._scene.acts:
            if end == "complete":
                end = await self._until_stopped(act(self._client, self._progress))
        if self._error is None:
            await self._look()
        return Session(progress=self._progress, elapsed_s=elapsed_s, end=end, error=self._error)

    async def _replay(self, url: str, traffic: Traffic) -> None:
        target = ReplayTarget(base_url=url, model=ADAPTER, timeout_s=_REQUEST_TIMEOUT_S)
        await replay(traffic.requests, target, self._clock, on_record=self._progress.add)
        await self._notice_end()

    async def _notice_end(self) -> None:
        """Wait for the word of a server that died: the failures of its requests come before it."""
        try:
            await self._client.get("/health")
        except httpx.TimeoutException:
            pass  # alive, and slow
        except httpx.TransportError:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._server.end(), _END_TIMEOUT_S)

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> End:
        """Do some work, looking at the server meanwhile, until it is done or must be left."""
        working = asyncio.create_task(work)
        watching = asyncio.create_task(self._watch())
        ended = asyncio.create_task(self._server.end())
        stopping = asyncio.create_task(self._stop.wait())
        async with _cancelled_after(working, watching, ended, stopping) as tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                self._error = ended.result()
                return "server ended"
            for task in (watching, working):
                if task.done():
                    task.result()
            return "complete" if working.done() else "interrupted"

    async def _watch(self) -> None:
        """Look at the server and show the progress, once a second, until cancelled."""
        while True:
            await self._look()
            now_s = self._now_s()
            self._scene.view.show(self._progress, now_s)
            await asyncio.sleep(_LOOK_EVERY_S - now_s % _LOOK_EVERY_S)

    async def _look(self) -> None:
        """Take one look at the server; one that fails is left out."""
        with contextlib.suppress(httpx.HTTPError):
            await self._scene.look(self._client, self._progress, self._now_s())

    def _now_s(self) -> float:
        return self._clock.now_s() - self._progress.start_s


@contextlib.asynccontextmanager
async def _cancelled_after(
    *tasks: "asyncio.Task[Any]",
) -> AsyncIterator[tuple["asyncio.Task[Any]", ...]]:
    """Give the tasks; cancel those that still run, and wait for their end, at the end."""
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[asyncio.Event]:
    """Give an event that is set by Ctrl-C, SIGTERM, or a closed terminal."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
