"""The demo of several replicas: each has its own part of the task, and they learn it together."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from collm.cli.demo_cluster_progress import ClusterProgress
from collm.cli.demo_cluster_report import ClusterReport, make_cluster_report
from collm.cli.demo_cluster_screen import cluster_line, draw_cluster_screen
from collm.cli.demo_cluster_tables import draw_cluster_report
from collm.cli.demo_exam import Examiner, choose_questions
from collm.cli.demo_files import Contents, exact_match_over_time, plain, write_files
from collm.cli.demo_outcome import Outcome, Setting
from collm.cli.demo_own_updates import OwnUpdates
from collm.cli.demo_progress import Look, read_look
from collm.cli.demo_rounds import read_rounds
from collm.cli.demo_session import Scene, prepare_folder, run_session
from collm.cli.demo_settings import ADAPTER
from collm.cli.demo_sites import cluster_settings, deal_sites, write_samples
from collm.clock import MonotonicClock

_OWN_UPDATES = "own-updates"


def run_cluster_demo(setting: Setting) -> Outcome:
    """Run it to its end and write its files.

    Raises:
        ConfigError: The run's folder cannot be written.
    """
    settings, traffic, clock = setting.settings, setting.traffic, MonotonicClock()
    sites = deal_sites(settings.num_replicas)
    configuration = cluster_settings(settings, sites)
    command = setting.command(prepare_folder(settings, configuration))
    write_samples(settings, sites)
    own_updates = OwnUpdates(settings.data_dir, settings.out / _OWN_UPDATES)
    examiner = Examiner(choose_questions(sites), own_updates, settings.served_name, clock)
    with setting.view(
        lambda progress, now_s, _: draw_cluster_screen(progress, settings, now_s), cluster_line
    ) as view:
        scene = Scene(
            begin=lambda start_s: ClusterProgress(traffic.groups, sites, start_s),
            look=ClusterLooks(own_updates).take,
            view=view,
            acts=(examiner.examine,),
        )
        session = asyncio.run(run_session(scene, traffic, command, settings.log_path, clock))
    report = make_cluster_report(
        session.progress, settings.objectives, session.elapsed_s, session.end
    )
    contents = make_contents(report, session.progress, configuration)
    return Outcome(
        tables=draw_cluster_report(report, settings),
        report=write_files(contents, settings, traffic.use),
        is_clean=report.serving.is_clean,
        error=session.error,
    )


class ClusterLooks:
    """Looks at a cluster through its front, and keeps what passes by.

    Args:
        own_updates: Keeps the updates of the first round.
    """

    def __init__(self, own_updates: OwnUpdates) -> None:
        self._own_updates = own_updates

    async def take(self, client: httpx.AsyncClient, progress: ClusterProgress, at_s: float) -> None:
        """Take in rounds, versions and every replica's figures.

        Raises:
            httpx.HTTPError: The front does not answer.
        """
        state = (await client.get("/cluster")).raise_for_status().json()
        live = {row["id"]: row["url"] for row in state["replicas"] if row["is_live"]}
        found = await asyncio.gather(*(_look(client, url, at_s) for url in live.values()))
        looks = {name: look for name, look in zip(live, found, strict=True) if look is not None}
        rounds = read_rounds(state["rounds"][ADAPTER])
        self._own_updates.keep(rounds)
        progress.look(looks, rounds, len(live))


def make_contents(
    report: ClusterReport, progress: ClusterProgress, configuration: Mapping[str, Any]
) -> Contents:
    """Return what the run's files are made of."""
    over_time = {
        name: {
            "own": exact_match_over_time(site.own, report.elapsed_s),
            "foreign": exact_match_over_time(site.foreign, report.elapsed_s),
        }
        for name, site in progress.sites.items()
    }
    return Contents(
        end=report.end,
        figures={**plain(report), "exact_match_over_time": over_time},
        configuration=configuration,
        records=progress.whole.records,
        looks=_looks(progress),
        start_s=progress.start_s,
    )


def _looks(progress: ClusterProgress) -> Iterator[dict[str, Any]]:
    looks: Sequence[tuple[str, Look]] = [
        (name, look) for name, site in progress.sites.items() for look in site.seen.looks
    ]
    for name, look in sorted(looks, key=lambda pair: pair[1].at_s):
        yield {"replica": name, **plain(look)}


async def _look(client: httpx.AsyncClient, url: str, at_s: float) -> Look | None:
    """Return a replica's figures; ``None`` when it does not answer."""
    try:
        reply = await client.get(url + "/control/snapshot")
        return read_look(reply.raise_for_status().json(), at_s)
    except httpx.HTTPError:
        return None
