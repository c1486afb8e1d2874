"""The final tables of a demo of one replica."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from collm.cli.demo_progress import active_version
from collm.cli.demo_report import DemoReport
from collm.cli.demo_settings import DemoSettings
from collm.cli.demo_table_parts import (
    accuracy_text,
    add_machine,
    add_serving,
    figures_table,
    partial_notice,
)
from collm.cli.demo_text import loss_text, number


def draw_report(report: DemoReport, settings: DemoSettings) -> RenderableType:
    """Return the final tables."""
    return Group(
        *partial_notice(report.end, report.elapsed_s),
        _exact_match(report),
        _figures(report, settings),
    )


def _exact_match(report: DemoReport) -> Table:
    table = Table("Exact match", box=box.SIMPLE_HEAD)
    num_compared = report.exact_match.first.num_answers
    for name in (f"first {num_compared}", f"last {num_compared}", "all"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, found in (("ten domains", report.exact_match), ("out of scope", report.out_of_scope)):
        table.add_row(name, *map(accuracy_text, (found.first, found.last, found.all)))
    return table


def _figures(report: DemoReport, settings: DemoSettings) -> Table:
    table = figures_table()
    add_serving(table, report.serving, settings.objectives)
    table.add_section()
    _add_learning(table, report)
    if report.last_look is not None:
        table.add_section()
        add_machine(table, report.last_look)
    return table


def _add_learning(table: Table, report: DemoReport) -> None:
    look, speed = report.last_look, number(report.training_tokens_per_s)
    tokens = number(look.training_tokens if look else None)
    table.add_row("Training tokens", f"{tokens}  ({speed} tokens/s)")
    table.add_row("Training samples", number(look.training_samples if look else None))
    table.add_row("Swaps", f"{len(report.swaps)}; now serving: {active_version(look)}")
    losses = [loss_text(swap.loss) for swap in report.swaps]
    if losses:
        table.add_row("Held-out loss, first · last", f"{losses[0]} · {losses[-1]}")
