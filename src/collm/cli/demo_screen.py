"""The live screen of a running demo."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from collm.cli.demo_chart import ShareChart
from collm.cli.demo_progress import Look, Progress, active_version, share_right
from collm.cli.demo_settings import TASK, DemoSettings
from collm.cli.demo_text import clock_text, loss_text, number, percent
from collm.metrics.attainment import measure_attainment
from collm.metrics.latency import LatencySummary, summarize_latency

RECENT = 100
"""Answers that the latest exact match is taken over."""
_CHART_WINDOW = 50
_TALL = 32
"""Rows from which the lower panels get more room."""
_WORK_COLORS = {"serve": "cyan", "train": "green", "evaluate": "yellow", "idle": "bright_black"}
_BAR_WIDTH = 14


def draw_screen(
    progress: Progress, settings: DemoSettings, now_s: float, height: int
) -> RenderableType:
    """Return the whole screen for a terminal of ``height`` rows."""
    layout = Layout()
    layout.split_column(
        Layout(_header(settings, now_s), size=2),
        Layout(name="middle", size=9),
        Layout(_exact_match(progress, settings, now_s), minimum_size=5),
        Layout(name="bottom", size=6 if height < _TALL else 10),
    )
    layout["middle"].split_row(Layout(_serving(progress, settings)), Layout(_learning(progress)))
    layout["bottom"].split_row(
        Layout(_swaps(progress, 4 if height < _TALL else 8)), Layout(_loop_time(progress.latest))
    )
    return layout


def _header(settings: DemoSettings, now_s: float) -> RenderableType:
    duration_s = settings.duration_s
    right = (
        f"{settings.budget} budget · seed {settings.seed} · "
        f"{clock_text(min(now_s, duration_s))} / {clock_text(duration_s)}"
    )
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.add_column(justify="right", no_wrap=True, min_width=len(right))
    line.add_row(
        Text.assemble(("collm", "bold cyan"), f"  {settings.served_name} on {TASK}"), right
    )
    bar = ProgressBar(
        total=duration_s, completed=min(now_s, duration_s), complete_style="cyan",
        finished_style="cyan",
    )  # fmt: skip
    return Group(line, bar)


def _serving(progress: Progress, settings: DemoSettings) -> Panel:
    look, goals = progress.latest, settings.objectives
    counts = _pairs()
    counts.add_row("running · waiting", f"{look.running if look else 0} · "
                   f"{look.waiting if look else 0}")  # fmt: skip
    counts.add_row("finished", number(progress.outcomes["completed"]))
    counts.add_row("failed · mixed", _bad(progress.num_failed, progress.num_mixed))
    table = Table.grid(expand=True, padding=(0, 1))
    for justify in ("left", "right", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_row("", *(Text(name, "dim") for name in ("p50", "p95", "p99")))
    ttft = summarize_latency(record.ttft_s for record in progress.records)
    tpot = summarize_latency(record.tpot_s for record in progress.records)
    table.add_row("TTFT, s", *_percentiles(ttft, 1.0, goals.ttft_s, ".2f"))
    table.add_row("TPOT, ms", *_percentiles(tpot, 1e3, goals.tpot_s, ".0f"))
    attained = measure_attainment(progress.records, goals)
    target = _pairs()
    low, high = attained.interval
    target.add_row("SLO attained", Text.assemble(
        (percent(attained.share), "bold"), (f" ({low:.0%}–{high:.0%})", "dim"),
    ))  # fmt: skip
    return Panel(Group(counts, table, target), title="Serving", title_align="left")


def _percentiles(
    times: LatencySummary, factor: float, objective_s: float, form: str
) -> Sequence[Text]:
    values = (times.p50_s, times.p95_s, times.p99_s)
    return [
        Text("–", "dim")
        if value is None
        else Text(format(value * factor, form), "red" if value > objective_s else "")
        for value in values
    ]


def _learning(progress: Progress) -> Panel:
    look = progress.latest
    table = _pairs()
    table.add_row("active version", Text(active_version(look), "bold yellow"))
    table.add_row("swaps", str(len(progress.swaps)))
    table.add_row("optimizer steps", number(look.steps if look else None))
    table.add_row("training samples", number(look.training_samples if look else None))
    table.add_row("training tokens/s", number(progress.recent_tokens_per_s()))
    table.add_row("held-out loss, served", loss_text(look.served_loss if look else None))
    table.add_row("held-out loss, shadow", loss_text(look.shadow_loss if look else None))
    return Panel(table, title="Learning", title_align="left")


def _exact_match(progress: Progress, settings: DemoSettings, now_s: float) -> Panel:
    recent, everything = progress.answers[-RECENT:], progress.answers
    title = Text.assemble(
        f"Exact match, last {RECENT}: ",
        (percent(share_right(recent)), "bold green"),
        f" · all {len(everything)}: {percent(share_right(everything))}",
        f" · out of scope: {percent(share_right(progress.out_of_scope[-RECENT:]))}",
    )
    chart = ShareChart(
        lambda times_s: progress.moving_share(times_s, _CHART_WINDOW),
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


def _pairs() -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    return table


def _bad(num_failed: int, num_mixed: int) -> Text:
    return Text(f"{num_failed} · {num_mixed}", "bold red" if num_failed or num_mixed else "green")
