"""The process of a cluster's front: the router, the registry and the coordinator behind HTTP."""

import asyncio
import socket
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

import httpx
import typer

from collm.cli.admin_key import admin_key
from collm.cli.round_metrics import count_round
from collm.cli.traces import open_traces, trace_round
from collm.clock import MonotonicClock
from collm.cluster.aggregating import ChildAggregator
from collm.cluster.client import ReplicaControl
from collm.cluster.config import FRONT
from collm.cluster.coordinator import Coordinator
from collm.cluster.endpoints_watch import EndpointsWatch
from collm.cluster.http_source import HttpSnapshotSource
from collm.cluster.members import Members
from collm.cluster.planner import NoPlanner, Planner
from collm.cluster.planning.estimates import LearnedEstimates
from collm.cluster.planning_config import PlanningConfig
from collm.cluster.registry import Registry
from collm.cluster.round_path import RoundObserver
from collm.cluster.router import Router
from collm.cluster.sent import Sent
from collm.cluster.spreading import Spreader
from collm.cluster.timing import Timing
from collm.config import CollmConfig
from collm.metrics.front import FrontMetrics
from collm.server.front.app import make_front_app
from collm.server.front.backends import FrontBackends
from collm.server.front.run import run_front as serve
from collm.store.front_folder import FrontFolder


def run_front(
    config: CollmConfig, *, endpoints: Path, control_secret: str, listener: socket.socket | None
) -> None:
    """Serve a cluster until a signal; prints the address once it listens.

    Args:
        config: The cluster's.
        endpoints: The file that says where replicas listen.
        control_secret: By which replicas know their front.
        listener: A bound socket to listen on; ``None`` binds the configured address.

    Raises:
        ConfigError: The address cannot be had, or the front's folder is in use.
        CollmError: The front cannot go on.
    """
    key, clock, sent, metrics = admin_key(), MonotonicClock(), Sent(), FrontMetrics()
    # Replicas are reached as they are listed, whatever proxy the environment names.
    client = httpx.AsyncClient(trust_env=False)
    names = [entry.name for entry in config.cluster.replicas]
    registry = Registry(HttpSnapshotSource(client), sent, clock, config.cluster.registry, names)

    async def follow() -> None:
        async with client:
            await registry.run(EndpointsWatch(endpoints))

    with (
        closing(open_traces(config.traces, FRONT)) as traces,
        FrontFolder(
            Path(config.replica.data_dir) / FRONT,
            max_versions=config.replica.max_versions,
            now_s=time.time,
        ) as folder,
    ):
        members = Members(
            lambda: registry.table, lambda url: ReplicaControl(client, url, control_secret)
        )
        timing = Timing(clock, time.time, asyncio.sleep)
        router = Router(config.cluster.router, Random(config.seed))
        planner = _planner(config.cluster.planning, members, router, folder, timing)
        observers = (partial(count_round, metrics), partial(trace_round, traces))
        coordinator = _coordinator(config, members, folder, timing, sent, planner, observers)
        router.spare(coordinator.caught_up)
        backends = FrontBackends(
            registry=registry,
            router=router,
            sent=sent,
            clock=clock,
            rounds=coordinator,
            metrics=metrics,
            traces=traces,
            planning=planner,
        )
        serve(
            make_front_app(backends, config.server, admin_key=key),
            lambda url: typer.echo(f"collm is ready at {url}"),
            (follow, coordinator.run, planner.run),
            listener,
        )


def _coordinator(
    config: CollmConfig,
    members: Members,
    folder: FrontFolder,
    timing: Timing,
    sent: Sent,
    planner: Planner | NoPlanner,
    observers: Sequence[RoundObserver],
) -> Coordinator:
    """Make what has replicas learn together, with demand and the planner's wishes in mind."""
    return Coordinator(
        config.cluster.rounds,
        members,
        folder,
        ChildAggregator(),
        timing,
        base_model=config.model.served_name,
        demand=sent.demand,
        spreader=Spreader(members, folder, timing),
        observers=observers,
        wanted=planner.members_of,
    )


def _planner(
    config: PlanningConfig,
    members: Members,
    router: Router,
    folder: FrontFolder,
    timing: Timing,
) -> Planner | NoPlanner:
    """Make what shares out traffic and training, as the configuration names it."""
    if config.policy == "none":
        return NoPlanner()
    estimates = LearnedEstimates(config)
    return Planner(config, estimates, members, router, folder.allocations, timing)
