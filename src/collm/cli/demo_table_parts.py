"""Parts of the final tables that every kind of demo has."""

from collections.abc import Callable

from rich import box
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from collm.cli.demo_answers import Accuracy
from collm.cli.demo_progress import Look
from collm.cli.demo_report import Serving
from collm.cli.demo_session import End
from collm.cli.demo_text import clock_text, milliseconds, number, percent, seconds
from collm.metrics.attainment import Attainment
from collm.metrics.latency import LatencySummary
from collm.metrics.records import Objectives


def partial_notice(end: End, elapsed_s: float) -> tuple[Text, ...]:
    """Return what to say of a run that ended before its time; nothing of another."""
    if end == "complete":
        return ()
    return (Text(f"Partial: {end} after {clock_text(elapsed_s)}.", "bold yellow"),)


def figures_table() -> Table:
    """Return an empty table of names and figures."""
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def accuracy_text(found: Accuracy) -> Text:
    """Return a share with the numbers behind it."""
    numbers = f"  {found.num_right}/{found.num_answers}"
    return Text.assemble((percent(found.share), "bold"), (numbers, "dim"))


def add_serving(table: Table, serving: Serving, objectives: Objectives) -> None:
    """Add how requests fared."""
    outcomes = serving.outcomes
    bad = outcomes["failed"] + outcomes["rejected"]
    style = "bold red" if bad or serving.num_mixed else "bold green"
    table.add_row("Requests", f"{outcomes['completed']} completed, {outcomes['aborted']} aborted")
    table.add_row("  failed or turned away", Text(str(bad), style))
    table.add_row("  tokens from two versions", Text(str(serving.num_mixed), style))
    goals = f"TTFT ≤ {objectives.ttft_s:g} s, TPOT ≤ {objectives.tpot_s * 1e3:g} ms"
    table.add_row("Objectives", goals)
    table.add_row("SLO attained", _attainment(serving.attainment))
    for kind, attained in serving.attainment_by_kind.items():
        table.add_row(f"  {kind} requests", _attainment(attained))
    table.add_row("  TTFT alone", _attainment(serving.ttft_met))
    table.add_row("  TPOT alone", _attainment(serving.tpot_met))
    table.add_row("TTFT  p50 · p95 · p99 · max", _latency(serving.ttft, seconds))
    table.add_row("TPOT  p50 · p95 · p99 · max", _latency(serving.tpot, milliseconds))
    table.add_row("Output tokens/s", number(serving.output_tokens_per_s))


def add_machine(table: Table, look: Look) -> None:
    """Add what a replica's time and memory went into."""
    shares = (f"{work} {percent(share)}" for work, share in look.loop_shares.items())
    gaps = look.token_gaps
    table.add_row(
        "Gap between tokens  p99 · max",
        f"{milliseconds(gaps['p99_s'])} · {milliseconds(gaps['max_s'])}",
    )
    table.add_row("Time of the step loop", " · ".join(shares))
    slowest = max(look.quanta.items(), key=lambda item: item[1]["p99_s"], default=None)
    if slowest is not None:
        kind, times = slowest
        table.add_row("Slowest quantum at p99", f"{kind}, {milliseconds(times['p99_s'])}")
    if look.resident_bytes is not None:
        table.add_row("Resident memory", decimal(look.resident_bytes))


def _attainment(attained: Attainment) -> Text:
    low, high = attained.interval
    numbers = f"  {attained.num_met} of {attained.num_counted}  ({low:.1%}–{high:.1%})"
    return Text.assemble((percent(attained.share), "bold"), (numbers, "dim"))


def _latency(times: LatencySummary, write: Callable[[float | None], str]) -> str:
    return " · ".join(
        write(value) for value in (times.p50_s, times.p95_s, times.p99_s, times.max_s)
    )
