"""The demo of one replica: it serves, and learns the whole task by itself."""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

from collm.cli.demo_files import Contents, exact_match_over_time, plain, write_files
from collm.cli.demo_outcome import Outcome, Setting
from collm.cli.demo_progress import Progress, read_look
from collm.cli.demo_report import DemoReport, make_report
from collm.cli.demo_screen import draw_screen, status_line
from collm.cli.demo_session import Scene, prepare_folder, run_session
from collm.cli.demo_settings import server_settings
from collm.cli.demo_tables import draw_report
from collm.clock import MonotonicClock


def run_replica_demo(setting: Setting) -> Outcome:
    """Run it to its end and write its files.

    Raises:
        ConfigError: The run's folder cannot be written.
    """
    settings, traffic = setting.settings, setting.traffic
    configuration = server_settings(settings)
    command = setting.command(prepare_folder(settings, configuration))
    with setting.view(
        lambda progress, now_s, height: draw_screen(progress, settings, now_s, height),
        status_line,
    ) as view:
        scene = Scene(
            begin=lambda start_s: Progress(traffic.groups, start_s), look=look_at_replica, view=view
        )
        session = asyncio.run(
            run_session(scene, traffic, command, settings.log_path, MonotonicClock())
        )
    report = make_report(session.progress, settings.objectives, session.elapsed_s, session.end)
    contents = make_contents(report, session.progress, configuration)
    return Outcome(
        tables=draw_report(report, settings),
        report=write_files(contents, settings, traffic.use),
        is_clean=report.serving.is_clean,
        error=session.error,
    )


async def look_at_replica(client: httpx.AsyncClient, progress: Progress, at_s: float) -> None:
    """Take in the server's figures; raises ``httpx.HTTPError`` when there are none."""
    reply = await client.get("/control/snapshot")
    progress.look(read_look(reply.raise_for_status().json(), at_s))


def make_contents(
    report: DemoReport, progress: Progress, configuration: Mapping[str, Any]
) -> Contents:
    """Return what the run's files are made of."""
    return Contents(
        end=report.end,
        figures={
            **plain(report),
            "exact_match_over_time": exact_match_over_time(progress.answers, report.elapsed_s),
        },
        configuration=configuration,
        records=progress.records,
        looks=map(plain, progress.looks),
        start_s=progress.start_s,
    )
