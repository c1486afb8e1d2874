"""A finished demo's figures as tables."""

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from collm.cli.demo_progress import Look, active_version
from collm.cli.demo_report import Accuracy, DemoReport, ExactMatch, Serving
from collm.cli.demo_settings import DemoSettings
from collm.cli.demo_text import clock_text, loss_text, milliseconds, number, percent, seconds
from collm.metrics.attainment import Attainment
from collm.metrics.latency import LatencySummary
from collm.metrics.records import Objectives


def draw_report(report: DemoReport, settings: DemoSettings) -> RenderableType:
    """Return the final tables."""
    parts: list[RenderableType] = [_exact_match(report), _figures(report, settings)]
    if report.is_partial:
        after = clock_text(report.elapsed_s)
        parts.insert(0, Text(f"Partial: {report.end} after {after}.", "bold yellow"))
    return Group(*parts)


def _exact_match(report: DemoReport) -> Table:
    table = Table("Exact match", box=box.SIMPLE_HEAD)
    num_compared = report.exact_match.first.num_answers
    for name in (f"first {num_compared}", f"last {num_compared}", "all"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, found in (("ten domains", report.exact_match), ("out of scope", report.out_of_scope)):
        table.add_row(name, *_accuracies(found))
    return table


def _accuracies(found: ExactMatch) -> Sequence[Text]:
    return [_accuracy(one) for one in (found.first, found.last, found.all)]


def _accuracy(found: Accuracy) -> Text:
    numbers = f"  {found.num_right}/{found.num_answers}"
    return Text.assemble((percent(found.share), "bold"), (numbers, "dim"))


def _figures(report: DemoReport, settings: DemoSettings) -> Table:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    _add_serving(table, report.serving, settings.objectives)
    table.add_section()
    _add_learning(table, report)
    if report.last_look is not None:
        table.add_section()
        _add_machine(table, report.last_look)
    return table


def _add_serving(table: Table, serving: Serving, objectives: Objectives) -> None:
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


def _add_learning(table: Table, report: DemoReport) -> None:
    look, speed = report.last_look, number(report.training_tokens_per_s)
    tokens = number(look.training_tokens if look else None)
    table.add_row("Training tokens", f"{tokens}  ({speed} tokens/s)")
    table.add_row("Training samples", number(look.training_samples if look else None))
    table.add_row("Swaps", f"{len(report.swaps)}; now serving: {active_version(look)}")
    losses = [loss_text(swap.loss) for swap in report.swaps]
    if losses:
        table.add_row("Held-out loss, first · last", f"{losses[0]} · {losses[-1]}")


def _add_machine(table: Table, look: Look) -> None:
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
