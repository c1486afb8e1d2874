"""The final tables of a demo of several replicas."""

from rich import box
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from collm.cli.demo_cluster_progress import STAGES, Stage
from collm.cli.demo_cluster_report import ClusterReport, SiteReport
from collm.cli.demo_progress import active_version
from collm.cli.demo_rounds import Round
from collm.cli.demo_settings import DemoSettings
from collm.cli.demo_table_parts import accuracy_text, add_serving, figures_table, partial_notice
from collm.cli.demo_text import loss_text, number, percent, seconds


def draw_cluster_report(report: ClusterReport, settings: DemoSettings) -> RenderableType:
    """Return the final tables."""
    return Group(
        *partial_notice(report.end, report.elapsed_s),
        _exam(report),
        Text(_explanation(report), style="dim"),
        _traffic(report),
        _rounds(report),
        _figures(report, settings),
    )


def _exam(report: ClusterReport) -> Table:
    table = Table("Exact match, same questions", box=box.SIMPLE_HEAD)
    for stage in STAGES:
        table.add_column(stage, justify="right", no_wrap=True)
    for name, site in report.sites.items():
        table.add_row(f"{name}, own domains", *(_mark(site, it, "own") for it in STAGES))
        table.add_row(f"{name}, foreign domains", *(_mark(site, it, "foreign") for it in STAGES))
    return table


def _mark(site: SiteReport, stage: Stage, which: str) -> Text:
    marks = site.exam.get(stage)
    return Text("–") if marks is None else accuracy_text(getattr(marks, which))


def _explanation(report: ClusterReport) -> str:
    """Say what the columns of the exam stand for."""
    first = next((found for found in report.rounds if found.number == 1), None)
    counts = {part.member: part.num_examples for part in first.parts} if first else {}
    alone = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count)
    served = sorted(
        {site.exam["together"].model for site in report.sites.values() if "together" in site.exam}
    )
    domains = "; ".join(
        f"{name}: {', '.join(site.domains)}".replace("_", " ")
        for name, site in report.sites.items()
    )
    return (
        f"  before: the base model. alone: the replica's own update of round 1, never aggregated "
        f"(samples: {alone or '–'}).\n  together: {', '.join(served) or 'nothing yet'}. "
        f"Asked after the traffic.\n  {domains}"
    )


def _traffic(report: ClusterReport) -> Table:
    table = Table("Exact match in the traffic", box=box.SIMPLE_HEAD)
    for name in ("first", "last", "all"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = [("all domains", report.exact_match), ("out of scope", report.out_of_scope)]
    for name, site in report.sites.items():
        rows += [(f"{name}, own domains", site.own), (f"{name}, foreign domains", site.foreign)]
    for name, found in rows:
        table.add_row(name, *map(accuracy_text, (found.first, found.last, found.all)))
    return table


def _rounds(report: ClusterReport) -> Table:
    table = Table("Round", box=box.SIMPLE_HEAD)
    for name in ("tokens", "took", "change of loss"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outcome", overflow="fold")
    for found in report.rounds:
        table.add_row(
            str(found.number),
            number(found.num_tokens),
            seconds(found.took_s),
            loss_text(found.loss_change),
            _outcome(found),
        )
    return table


def _outcome(found: Round) -> str:
    if found.status == "done":
        return f"{found.candidate} {found.reason}"
    return found.status if found.reason is None else f"{found.status}: {found.reason}"


def _figures(report: ClusterReport, settings: DemoSettings) -> Table:
    table = figures_table()
    add_serving(table, report.serving, settings.objectives)
    for name, site in report.sites.items():
        table.add_section()
        _add_site(table, name, site)
    return table


def _add_site(table: Table, name: str, site: SiteReport) -> None:
    look = site.last_look
    table.add_row(f"{name}: requests answered", number(site.num_requests))
    table.add_row("  serves", active_version(look))
    tokens = number(look.training_tokens if look else None)
    table.add_row("  training tokens", f"{tokens}  ({number(site.training_tokens_per_s)} tokens/s)")
    if look is None:
        return
    shares = (f"{work} {percent(share)}" for work, share in look.loop_shares.items())
    table.add_row("  time of the step loop", " · ".join(shares))
    if look.resident_bytes is not None:
        table.add_row("  resident memory", decimal(look.resident_bytes))
