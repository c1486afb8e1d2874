"""``collm demo``: serve a real workload and learn from real data, on one screen."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from collm.cli.demo_cluster import run_cluster_demo
from collm.cli.demo_outcome import Outcome, Setting
from collm.cli.demo_replica import run_replica_demo
from collm.cli.demo_settings import DemoSettings
from collm.cli.demo_sites import MAX_SITES
from collm.cli.demo_traffic import MAX_MINUTES, SHORT_ATTRIBUTION, TraceUse, build_traffic
from collm.model.config import DEFAULT_MODEL
from collm.pacing.config import BudgetName

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

_SERVE = ("-m", "collm", "serve")
_MINUTES = 8.5
_RATE = 2.65
"""Enough for the tables to be over the first 300 answers and over the last 300."""
_CLUSTER_RATE = 2.0
"""Two threads in one replica share each step; one thread each does less at once."""


@app.command(epilog="Examples: `collm demo`, or `collm demo --replicas 1 --minutes 2`.")
def demo(
    minutes: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=MAX_MINUTES,
            help="How long requests arrive; a minute replays an hour of the trace.",
        ),
    ] = _MINUTES,
    seed: Annotated[
        int, typer.Option(help="Chooses requests, texts, and the order of training samples.")
    ] = 0,
    out: Annotated[
        Path, typer.Option(help="Folder for report, records, the server's log and data.")
    ] = Path("out/demo"),
    port: Annotated[int, typer.Option(help="TCP port of the server; 0 takes a free one.")] = 0,
    budget: Annotated[
        BudgetName,
        typer.Option(
            help="How training shares time with requests: 'latency' trains for 40 ms at most "
            "between two tokens, 'objective' for as long as the objectives leave over."
        ),
    ] = "latency",
    replicas: Annotated[
        int,
        typer.Option(
            min=1,
            max=MAX_SITES,
            help="With several, each has a thread and its own part of the training samples, and "
            "they learn together in federated rounds; a single one learns everything by itself.",
        ),
    ] = 2,
    requests_per_s: Annotated[
        float | None,
        typer.Option(
            help="Mean rate of arrivals; half of them are scored. By default "
            f"{_CLUSTER_RATE:g}, or {_RATE:g} with a single replica."
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="Base model: a folder, a .gguf file, a known name or a hub id.")
    ] = DEFAULT_MODEL,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Print lines instead of a live screen, also on a terminal."),
    ] = False,
) -> None:
    """Watch a model serve a real workload and get better at it meanwhile.

    Starts a server, sends it requests at the arrival times of a real trace, and lets it fine-tune
    an adapter in the time that the latency objectives (first token within 0.8 s, 0.1 s per token)
    leave over. Half of the requests ask for the intent of a sentence (clinc150, test set; the
    adapter learns from the train set) and are scored by exact match; the others have the lengths
    that the trace gives. Nothing is faked: each improvement is measured on held-out samples, then
    swapped in between two steps, while answers stream.

    Each of two replicas has the samples of five of the ten domains, which never leave it; in
    federated rounds they learn to answer all ten. Afterwards both answer the same test questions:
    as the base model, with what each learned alone in its first round, and as served.

    Ends with tables and writes OUT/report.json, OUT/requests.jsonl and OUT/looks.jsonl. Ctrl-C
    stops early and still reports. The exit code is 0 unless a request failed, was turned away or
    mixed two versions, or the server ended by itself.
    """
    is_cluster = replicas > 1
    if requests_per_s is None:
        requests_per_s = _CLUSTER_RATE if is_cluster else _RATE
    settings = DemoSettings(
        minutes=minutes, requests_per_s=requests_per_s, seed=seed, out=out, port=port,
        model=model, budget=budget, num_replicas=replicas,
    )  # fmt: skip
    console = Console()
    setting = Setting(
        settings=settings,
        traffic=build_traffic(minutes, requests_per_s, seed),
        serve=(sys.executable, *_SERVE),
        console=console,
        is_live=console.is_terminal and not plain,
    )
    outcome = (run_cluster_demo if is_cluster else run_replica_demo)(setting)
    _print(console, outcome, settings, setting.traffic.use)
    if outcome.error is not None:
        typer.echo(f"collm: {outcome.error}", err=True)
    raise typer.Exit(0 if outcome.is_clean and outcome.error is None else 1)


def _print(console: Console, outcome: Outcome, settings: DemoSettings, use: TraceUse) -> None:
    console.print(outcome.tables)
    console.print(
        f"{use.num_requests} requests of {use.trace}, hours {use.start_hour:g} to "
        f"{use.start_hour + use.num_hours:g}, {use.speed_up:g} times as fast, "
        f"{use.num_requests} of {use.num_rows} rows; {use.num_scored} scored. Lengths "
        f"divided by {use.length_divisor:g}, prompts clipped to {use.max_prompt_tokens} tokens, "
        f"outputs to {use.max_output_tokens}. Seed "
        f"{settings.seed}, budget {settings.budget}.",
        highlight=False,
    )
    console.print(SHORT_ATTRIBUTION, style="dim", highlight=False)
    console.print(f"Report: {outcome.report}", highlight=False, soft_wrap=True)
