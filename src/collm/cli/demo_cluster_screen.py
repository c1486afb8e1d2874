"""The live screen of a running demo of several replicas."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from collm.cli.demo_answers import Answer, moving_shares, share_right
from collm.cli.demo_chart import ShareChart
from collm.cli.demo_cluster_progress import ClusterProgress, SiteProgress
from collm.cli.demo_panels import draw_header, draw_serving, pairs_table, serving_line
from collm.cli.demo_progress import active_version
from collm.cli.demo_rounds import Round
from collm.cli.demo_settings import TASK, DemoSettings
from collm.cli.demo_text import loss_text, number, percent

_NUM_SHOWN_ROUNDS = 3
_RECENT = 30
"""Answers that say how a replica does now: of each kind it gives one in two to four seconds."""


def draw_cluster_screen(
    progress: ClusterProgress, settings: DemoSettings, now_s: float
) -> RenderableType:
    """Return the whole screen."""
    layout = Layout()
    subject = f"{settings.served_name} on {TASK}, {settings.num_replicas} replicas"
    layout.split_column(
        Layout(draw_header(settings, subject, now_s), size=2),
        Layout(name="middle", size=9),
        Layout(name="sites", minimum_size=12),
    )
    layout["middle"].split_row(
        Layout(draw_serving(progress.whole, settings.objectives, progress.num_sequences())),
        Layout(_rounds(progress)),
    )
    layout["sites"].split_row(
        *(Layout(_site(site, settings, now_s)) for site in progress.sites.values())
    )
    return layout


def cluster_line(progress: ClusterProgress, now_s: float) -> str:
    """Return how things stand in one line."""
    latest = progress.latest_round
    sites = "; ".join(
        f"{name} {active_version(site.seen.latest)}: own {_recent(site.own)}, "
        f"foreign {_recent(site.foreign)}, {number(site.seen.recent_tokens_per_s())} tokens/s"
        for name, site in progress.sites.items()
    )
    return (
        f"{serving_line(progress.whole, progress.num_sequences()[0], now_s)}"
        f" | round {f'{latest.number} {latest.status}' if latest else '–'}"
        f" | {sites} | {progress.act}"
    )


def _rounds(progress: ClusterProgress) -> Panel:
    table = pairs_table()
    table.add_row("replicas", f"{progress.num_live} of {len(progress.sites)} live")
    table.add_row("rounds promoted", str(progress.num_promoted))
    table.add_row("now", Text(progress.act, "bold yellow"))
    rows = Table.grid(expand=True, padding=(0, 1))
    for justify in ("left", "left", "right"):
        rows.add_column(justify=justify, no_wrap=True)
    latest = sorted(progress.rounds.values(), key=lambda found: found.number, reverse=True)
    for found in latest[:_NUM_SHOWN_ROUNDS]:
        rows.add_row(*_round_row(found))
    empty = Text("no round yet", "dim")
    return Panel(
        Group(table, rows if progress.rounds else empty),
        title="Learning together",
        title_align="left",
    )


def _round_row(found: Round) -> tuple[str, Text, str]:
    style = {"done": "green", "refused": "red", "abandoned": "red"}.get(found.status, "yellow")
    change = "" if found.loss_change is None else f"loss {found.loss_change:+.3f}"
    return f"round {found.number}", Text(found.status, style), change


def _site(site: SiteProgress, settings: DemoSettings, now_s: float) -> Panel:
    look = site.seen.latest
    table = pairs_table()
    table.add_row("serves", Text(active_version(look), "bold yellow"))
    table.add_row("training tokens/s", number(site.seen.recent_tokens_per_s()))
    table.add_row("held-out loss, own", loss_text(look.shadow_loss if look else None))
    layout = Layout()
    layout.split_column(
        Layout(table, size=3),
        *_chart("own", site.own, site, settings, now_s),
        *_chart("foreign", site.foreign, site, settings, now_s),
    )
    title = f"{site.site.name}: {', '.join(sorted(site.site.domains))}".replace("_", " ")
    return Panel(layout, title=title, title_align="left")


def _chart(
    name: str,
    answers: Sequence[Answer],
    site: SiteProgress,
    settings: DemoSettings,
    now_s: float,
) -> tuple[Layout, Layout]:
    """Return a line and a chart of exact match on some domains."""
    title = Text.assemble(
        f"{name} domains, last {_RECENT}: ",
        (percent(share_right(answers[-_RECENT:])), "bold green"),
    )
    chart = ShareChart(
        lambda times_s: moving_shares(answers, times_s, _RECENT),
        [swap.at_s for swap in site.seen.swaps],
        now_s,
        settings.duration_s,
    )
    return Layout(title, size=1), Layout(chart, minimum_size=3)


def _recent(answers: Sequence[Answer]) -> str:
    return percent(share_right(answers[-_RECENT:]))
