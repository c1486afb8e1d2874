"""Parts of the live screen that every kind of demo has, and the line that stands for them."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from collm.cli.demo_progress import Progress
from collm.cli.demo_settings import DemoSettings
from collm.cli.demo_text import clock_text, milliseconds, number, percent, seconds
from collm.metrics.attainment import measure_attainment
from collm.metrics.latency import LatencySummary, summarize_latency
from collm.metrics.records import Objectives


def draw_header(settings: DemoSettings, subject: str, now_s: float) -> RenderableType:
    """Return a line that says what runs and for how long, above a bar."""
    duration_s = settings.duration_s
    right = (
        f"{settings.budget} budget · seed {settings.seed} · "
        f"{clock_text(min(now_s, duration_s))} / {clock_text(duration_s)}"
    )
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.add_column(justify="right", no_wrap=True, min_width=len(right))
    line.add_row(Text.assemble(("collm", "bold cyan"), f"  {subject}"), right)
    bar = ProgressBar(
        total=duration_s, completed=min(now_s, duration_s), complete_style="cyan",
        finished_style="cyan",
    )  # fmt: skip
    return Group(line, bar)


def draw_serving(
    progress: Progress, objectives: Objectives, num_sequences: tuple[int, int]
) -> Panel:
    """Return how requests fare; ``num_sequences`` are those that run and those that wait."""
    counts = pairs_table()
    counts.add_row("running · waiting", f"{num_sequences[0]} · {num_sequences[1]}")
    counts.add_row("finished", number(progress.outcomes["completed"]))
    counts.add_row("failed · mixed", _bad(progress.num_failed, progress.num_mixed))
    table = Table.grid(expand=True, padding=(0, 1))
    for justify in ("left", "right", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_row("", *(Text(name, "dim") for name in ("p50", "p95", "p99")))
    ttft = summarize_latency(record.ttft_s for record in progress.records)
    tpot = summarize_latency(record.tpot_s for record in progress.records)
    table.add_row("TTFT, s", *_percentiles(ttft, 1.0, objectives.ttft_s, ".2f"))
    table.add_row("TPOT, ms", *_percentiles(tpot, 1e3, objectives.tpot_s, ".0f"))
    attained = measure_attainment(progress.records, objectives)
    target = pairs_table()
    low, high = attained.interval
    target.add_row("SLO attained", Text.assemble(
        (percent(attained.share), "bold"), (f" ({low:.0%}–{high:.0%})", "dim"),
    ))  # fmt: skip
    return Panel(Group(counts, table, target), title="Serving", title_align="left")


def serving_line(progress: Progress, num_running: int, now_s: float) -> str:
    """Return how requests fare in one line."""
    ttft = summarize_latency(record.ttft_s for record in progress.records)
    tpot = summarize_latency(record.tpot_s for record in progress.records)
    return (
        f"{clock_text(now_s)}  requests: {progress.outcomes['completed']} done, "
        f"{num_running} running, {progress.num_failed} failed"
        f" | p95: TTFT {seconds(ttft.p95_s)}, TPOT {milliseconds(tpot.p95_s)}"
    )


def pairs_table() -> Table:
    """Return an empty table of names and, at the right, values."""
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    return table


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


def _bad(num_failed: int, num_mixed: int) -> Text:
    return Text(f"{num_failed} · {num_mixed}", "bold red" if num_failed or num_mixed else "green")
