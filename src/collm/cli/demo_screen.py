"""The live screen of a running demo of one replica."""

from rich.console import RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from collm.cli.demo_answers import moving_shares, share_right
from collm.cli.demo_chart import ShareChart
from collm.cli.demo_panels import (
    draw_header,
    draw_serving,
    pairs_table,
    serving_line,
)
from collm.cli.demo_progress import Look, Progress, active_version
from collm.cli.demo_settings import TASK, DemoSettings
from collm.cli.demo_text import clock_text, loss_text, number, percent

_RECENT = 100
"""Answers that the latest exact match is taken over."""
_CHART_WINDOW = 50
"""Answers that each column of the chart is taken over."""
_TALL = 32
"""Rows from which the lower panels get more room."""
_WORK_COLORS = {"serve": "cyan", "train": "green", "evaluate": "yellow", "idle": "bright_black"}
_BAR_WIDTH = 14


def draw_screen(
    progress: Progress, settings: DemoSettings, now_s: float, height: int
) -> RenderableType:
    """Return the whole screen for a terminal of ``height`` rows."""
    layout = Layout()
    look = progress.latest
    num_sequences = (look.running, look.waiting) if look else (0, 0)
    layout.split_column(
        Layout(draw_header(settings, f"{settings.served_name} on {TASK}", now_s), size=2),
        Layout(name="middle", size=9),
        Layout(_exact_match(progress, settings, now_s), minimum_size=5),
        Layout(name="bottom", size=6 if height < _TALL else 10),
    )
    layout["middle"].split_row(
        Layout(draw_serving(progress, settings.objectives, num_sequences)),
        Layout(_learning(progress)),
    )
    layout["bottom"].split_row(
        Layout(_swaps(progress, 4 if height < _TALL else 8)), Layout(_loop_time(progress.latest))
    )
    return layout


def _learning(progress: Progress) -> Panel:
    look = progress.latest
    table = pairs_table()
    table.add_row("active version", Text(active_version(look), "bold yellow"))
    table.add_row("swaps", str(len(progress.swaps)))
    table.add_row("optimizer steps", number(look.steps if look else None))
    table.add_row("training samples", number(look.training_samples if look else None))
    table.add_row("training tokens/s", number(progress.recent_tokens_per_s()))
    table.add_row("held-out loss, served", loss_text(look.served_loss if look else None))
    table.add_row("held-out loss, shadow", loss_text(look.shadow_loss if look else None))
    return Panel(table, title="Learning", title_align="left")


def _exact_match(progress: Progress, settings: DemoSettings, now_s: float) -> Panel:
    recent, everything = progress.answers[-_RECENT:], progress.answers
    title = Text.assemble(
        f"Exact match, last {_RECENT}: ",
        (percent(share_right(recent)), "bold green"),
        f" · all {len(everything)}: {percent(share_right(everything))}",
        f" · out of scope: {percent(share_right(progress.out_of_scope[-_RECENT:]))}",
    )
    chart = ShareChart(
        lambda times_s: moving_shares(progress.answers, times_s, _CHART_WINDOW),
        [swap.at_s for swap in progress.swaps],
        now_s,
        settings.duration_s,
    )
    return Panel(chart, title=title, title_align="left")


def _swaps(progress: Progress, num_rows: int) -> Panel:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for swap in reversed(progress.swaps[-num_rows:]):
        table.add_row(clock_text(swap.at_s), swap.version, f"loss {loss_text(swap.loss)}")
    empty = Text("none yet: the base model answers", "dim")
    return Panel(table if progress.swaps else empty, title="Swaps", title_align="left")


def _loop_time(look: Look | None) -> Panel:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(width=_BAR_WIDTH)
    table.add_column(justify="right", no_wrap=True)
    for work, share in (look.loop_shares if look else dict.fromkeys(_WORK_COLORS, 0.0)).items():
        bar = ProgressBar(
            total=1.0, completed=share, width=_BAR_WIDTH,
            complete_style=_WORK_COLORS[work], finished_style=_WORK_COLORS[work],
        )  # fmt: skip
        table.add_row(work, bar, percent(share))
    return Panel(table, title="Time of the step loop", title_align="left")


def status_line(progress: Progress, now_s: float) -> str:
    """Return how things stand in one line."""
    look = progress.latest
    return (
        serving_line(progress, look.running if look else 0, now_s)
        + f" | training: {number(progress.recent_tokens_per_s())} tokens/s, "
        f"held-out loss {loss_text(look.shadow_loss if look else None)}"
        f" | exact match, last {_RECENT}: {percent(share_right(progress.answers[-_RECENT:]))}"
        f" | {active_version(look)}, {len(progress.swaps)} swaps"
    )
