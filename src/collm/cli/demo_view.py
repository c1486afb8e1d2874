"""What a running demo shows: a live screen on a terminal, single lines elsewhere."""

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from collm.cli.demo_progress import Progress, active_version, share_right
from collm.cli.demo_screen import RECENT, draw_screen
from collm.cli.demo_settings import DemoSettings
from collm.cli.demo_text import clock_text, loss_text, milliseconds, number, percent, seconds
from collm.metrics.latency import summarize_latency

_LINE_EVERY_S = 15.0


class LiveView:
    """Redraws the whole screen at every ``show``."""

    def __init__(self, console: Console, settings: DemoSettings) -> None:
        """Draw on ``console``, a terminal."""
        self._settings = settings
        self._live = Live(console=console, screen=True, auto_refresh=False)

    def __enter__(self) -> "LiveView":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def starting(self, last_line: str) -> None:
        """Show that the server is being started, and its latest word."""
        text = Text.assemble("Starting the server …\n\n", (last_line, "dim"))
        self._live.update(Panel(text, title="collm demo", padding=(1, 2)), refresh=True)

    def show(self, progress: Progress, now_s: float) -> None:
        """Show how things stand ``now_s`` seconds after the start."""
        height = self._live.console.size.height
        self._live.update(draw_screen(progress, self._settings, now_s, height), refresh=True)


class LineView:
    """Prints a line now and then."""

    def __init__(self, console: Console) -> None:
        """Print on ``console``."""
        self._console = console
        self._next_s = 0.0
        self._has_said_starting = False

    def __enter__(self) -> "LineView":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def starting(self, _: str) -> None:
        """Say once that the server is being started."""
        if not self._has_said_starting:
            self._console.print("starting the server …")
            self._has_said_starting = True

    def show(self, progress: Progress, now_s: float) -> None:
        """Print a line when the last one is old enough."""
        if now_s >= self._next_s:
            self._next_s += _LINE_EVERY_S
            self._console.print(status_line(progress, now_s), soft_wrap=True, highlight=False)


def status_line(progress: Progress, now_s: float) -> str:
    """Return how things stand in one line."""
    look = progress.latest
    ttft = summarize_latency(record.ttft_s for record in progress.records)
    tpot = summarize_latency(record.tpot_s for record in progress.records)
    return (
        f"{clock_text(now_s)}  requests: {progress.outcomes['completed']} done, "
        f"{look.running if look else 0} running, {progress.num_failed} failed"
        f" | p95: TTFT {seconds(ttft.p95_s)}, TPOT {milliseconds(tpot.p95_s)}"
        f" | training: {number(progress.recent_tokens_per_s())} tokens/s, "
        f"held-out loss {loss_text(look.shadow_loss if look else None)}"
        f" | exact match, last {RECENT}: {percent(share_right(progress.answers[-RECENT:]))}"
        f" | {active_version(look)}, {len(progress.swaps)} swaps"
    )
