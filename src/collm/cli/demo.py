"""``collm demo``: serve a real workload and learn from real data, on one screen."""

import asyncio
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console

from collm.cli.demo_report import DemoReport, make_report, write_files
from collm.cli.demo_session import Session, prepare_folder, run_session
from collm.cli.demo_settings import DemoSettings
from collm.cli.demo_tables import draw_report
from collm.cli.demo_traffic import MAX_MINUTES, SHORT_ATTRIBUTION, Traffic, build_traffic
from collm.cli.demo_view import LineView, LiveView
from collm.clock import MonotonicClock
from collm.model.config import DEFAULT_MODEL
from collm.pacing.config import BudgetName

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

_SERVE = ("-m", "collm", "serve")


@app.command(epilog="Examples: `collm demo`, or `collm demo --minutes 2 --seed 1`.")
def demo(
    minutes: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=MAX_MINUTES,
            help="How long requests arrive; a minute replays an hour of the trace.",
        ),
    ] = 8.5,
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
    requests_per_s: Annotated[
        float, typer.Option(help="Mean rate of arrivals; half of them are scored.")
    ] = 2.65,
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

    Ends with tables and writes OUT/report.json, OUT/requests.jsonl and OUT/looks.jsonl. Ctrl-C
    stops early and still reports. The exit code is 0 unless a request failed, was turned away or
    mixed two versions, or the server ended by itself.
    """
    settings = DemoSettings(
        minutes=minutes, requests_per_s=requests_per_s, seed=seed, out=out, port=port,
        model=model, budget=budget,
    )  # fmt: skip
    console = Console()
    traffic = build_traffic(minutes, requests_per_s, seed)
    session = _run(settings, traffic, console, is_live=console.is_terminal and not plain)
    report = make_report(session.progress, settings.objectives, session.elapsed_s, session.end)
    path = write_files(report, session.progress, settings, traffic.use)
    _print(console, report, settings, traffic, path)
    if session.error is not None:
        typer.echo(f"collm: {session.error}", err=True)
    raise typer.Exit(0 if report.is_clean and session.error is None else 1)


def _run(settings: DemoSettings, traffic: Traffic, console: Console, *, is_live: bool) -> Session:
    config = prepare_folder(settings)
    command = [sys.executable, *_SERVE, "--config", str(config)]
    view = LiveView(console, settings) if is_live else LineView(console)
    with cast("AbstractContextManager[LiveView | LineView]", view) as shown:
        return asyncio.run(run_session(settings, traffic, command, shown, MonotonicClock()))


def _print(
    console: Console, report: DemoReport, settings: DemoSettings, traffic: Traffic, path: Path
) -> None:
    use = traffic.use
    console.print(draw_report(report, settings))
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
    console.print(f"Report: {path}", highlight=False, soft_wrap=True)
