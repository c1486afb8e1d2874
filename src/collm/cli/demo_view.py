"""What a running demo shows: a live screen on a terminal, single lines elsewhere."""

from collections.abc import Callable
from typing import Generic, TypeVar

from rich.console import Console, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

_LINE_EVERY_S = 15.0

P = TypeVar("P", contravariant=True)


class LiveView(Generic[P]):
    """Redraws the whole screen at every ``show``."""

    def __init__(self, console: Console, draw: Callable[[P, float, int], RenderableType]) -> None:
        """Show on a terminal what ``draw`` makes of progress, seconds, and the screen's rows."""
        self._draw = draw
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._url = ""

    def __enter__(self) -> "LiveView[P]":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def starting(self, last_line: str) -> None:
        """Show that the server is being started, and its latest word."""
        text = Text.assemble("Starting the server …\n\n", (last_line, "dim"))
        self._live.update(Panel(text, title="collm demo", padding=(1, 2)), refresh=True)

    def started(self, url: str) -> None:
        """Keep the address of the server's page on the last row from now on."""
        self._url = url

    def show(self, progress: P, now_s: float) -> None:
        """Show how things stand ``now_s`` seconds after the start."""
        height = self._live.console.size.height - 1
        screen = Layout()
        screen.split_column(
            Layout(self._draw(progress, now_s, height)),
            Layout(Text(_page(self._url), style="dim", no_wrap=True), size=1),
        )
        self._live.update(screen, refresh=True)


class LineView(Generic[P]):
    """Prints a line now and then."""

    def __init__(self, console: Console, line: Callable[[P, float], str]) -> None:
        """Print what ``line`` makes of progress and seconds."""
        self._console = console
        self._line = line
        self._next_s = 0.0
        self._has_said_starting = False

    def __enter__(self) -> "LineView[P]":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def starting(self, _: str) -> None:
        """Say once that the server is being started."""
        if not self._has_said_starting:
            self._console.print("starting the server …")
            self._has_said_starting = True

    def started(self, url: str) -> None:
        """Say where the server's page is."""
        self._console.print(_page(url), soft_wrap=True, highlight=False)

    def show(self, progress: P, now_s: float) -> None:
        """Print a line when the last one is old enough."""
        if now_s >= self._next_s:
            self._next_s += _LINE_EVERY_S
            self._console.print(self._line(progress, now_s), soft_wrap=True, highlight=False)


def _page(url: str) -> str:
    return f"its page: {url}/"
