"""One run of the demo: a server, a replay against it, and looks at it once a second."""

import asyncio
import contextlib
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx
import yaml

from collm.cli.demo_progress import Progress, read_look
from collm.cli.demo_report import End
from collm.cli.demo_server import ServerEndedError, ServerProcess
from collm.cli.demo_settings import ADAPTER, DemoSettings, server_settings
from collm.cli.demo_traffic import Traffic
from collm.clock import Clock
from collm.errors import ConfigError
from collm.workload.replay import ReplayTarget, replay

T = TypeVar("T")

_LOOK_EVERY_S = 1.0
_LOOK_TIMEOUT_S = 5.0
_REQUEST_TIMEOUT_S = 60.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class View(Protocol):
    """Shows a run while it goes on."""

    def starting(self, last_line: str) -> None:
        """Show that the server is being started, and its latest word."""
        ...

    def show(self, progress: Progress, now_s: float) -> None:
        """Show how things stand ``now_s`` seconds after the start."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a run came to."""

    progress: Progress
    elapsed_s: float
    end: End
    error: ServerEndedError | None = None
    """How the server ended, if it did by itself."""


def prepare_folder(settings: DemoSettings) -> Path:
    """Make the run's folder, drop the data of an earlier run, write the server's configuration.

    Returns:
        The configuration file.

    Raises:
        ConfigError: The folder cannot be written.
    """
    path = settings.out / "collm.yaml"
    try:
        settings.out.mkdir(parents=True, exist_ok=True)
        if (settings.data_dir / "collm.db").is_file():
            shutil.rmtree(settings.data_dir)
        text = yaml.safe_dump(server_settings(settings), sort_keys=False)
        path.write_text("# The server of collm demo: collm serve --config THIS\n" + text)
    except OSError as error:
        raise ConfigError(f"--out {settings.out} cannot be used: {error}") from error
    return path


async def run_session(
    settings: DemoSettings, traffic: Traffic, command: Sequence[str], view: View, clock: Clock
) -> Session:
    """Start the server, replay the traffic, stop the server; Ctrl-C ends it early.

    Args:
        settings: The run's settings; its folder exists.
        traffic: What to replay.
        command: Starts the server.
        view: Is shown the progress.
        clock: Monotonic time.
    """
    with _stop_on_signals() as stop:
        server = await ServerProcess.start(command, settings.log_path)
        try:
            url = await _wait_until_ready(server, view, stop)
            if url is None:
                progress = Progress(traffic.groups, clock.now_s())
                return Session(progress=progress, elapsed_s=0.0, end="interrupted")
            return await _play(url, traffic, server, view, clock, stop)
        except ServerEndedError as error:
            progress = Progress(traffic.groups, clock.now_s())
            return Session(progress=progress, elapsed_s=0.0, end="server ended", error=error)
        finally:
            await server.stop()


async def _wait_until_ready(server: ServerProcess, view: View, stop: asyncio.Event) -> str | None:
    """Return the server's URL; ``None`` when asked to stop before it was ready."""
    ready = asyncio.create_task(server.ready())
    async with _cancelled_after(ready, asyncio.create_task(stop.wait())) as tasks:
        while not any(task.done() for task in tasks):
            view.starting("".join(server.last_lines(1)))
            await asyncio.wait(tasks, timeout=_LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
        return ready.result() if ready.done() else None


async def _play(
    url: str,
    traffic: Traffic,
    server: ServerProcess,
    view: View,
    clock: Clock,
    stop: asyncio.Event,
) -> Session:
    progress = Progress(traffic.groups, clock.now_s())
    target = ReplayTarget(base_url=url, model=ADAPTER, timeout_s=_REQUEST_TIMEOUT_S)
    async with httpx.AsyncClient(base_url=url, timeout=_LOOK_TIMEOUT_S, trust_env=False) as client:
        playing = asyncio.create_task(
            replay(traffic.requests, target, clock, on_record=progress.add)
        )
        ended = asyncio.create_task(server.end())
        watching = asyncio.create_task(_watch(client, progress, view, clock))
        stopping = asyncio.create_task(stop.wait())
        async with _cancelled_after(playing, ended, watching, stopping) as tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = ended.result() if ended.done() else None
            if watching.done():
                watching.result()
            end: End = "complete" if playing.done() else "interrupted"
            elapsed_s = clock.now_s() - progress.start_s
            if error is None:
                await _look(client, progress, clock)
            else:
                end = "server ended"
    return Session(progress=progress, elapsed_s=elapsed_s, end=end, error=error)


async def _watch(client: httpx.AsyncClient, progress: Progress, view: View, clock: Clock) -> None:
    """Look at the server and show the progress, once a second, until cancelled."""
    while True:
        await _look(client, progress, clock)
        now_s = clock.now_s() - progress.start_s
        view.show(progress, now_s)
        await asyncio.sleep(_LOOK_EVERY_S - now_s % _LOOK_EVERY_S)


async def _look(client: httpx.AsyncClient, progress: Progress, clock: Clock) -> None:
    """Take one look at the server; one that fails is left out."""
    with contextlib.suppress(httpx.HTTPError):
        reply = await client.get("/control/snapshot")
        reply.raise_for_status()
        progress.look(read_look(reply.json(), clock.now_s() - progress.start_s))


@contextlib.asynccontextmanager
async def _cancelled_after(*tasks: "asyncio.Task[Any]") -> Any:
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
