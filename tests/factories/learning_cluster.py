"""Real replicas with servers of their own in one process, and a real coordinator beside them."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from collm.chats import Sample, parse_sample
from collm.cli.replica_process import backends_of
from collm.clock import Clock, MonotonicClock
from collm.cluster.aggregating import ChildAggregator
from collm.cluster.client import ReplicaControl
from collm.cluster.coordinator import Coordinator
from collm.cluster.endpoints import Endpoint, write_endpoints
from collm.cluster.endpoints_watch import EndpointsWatch
from collm.cluster.http_source import HttpSnapshotSource
from collm.cluster.members import Members
from collm.cluster.registry import Registry
from collm.cluster.round_config import RoundConfig
from collm.cluster.routing_config import RegistryConfig
from collm.cluster.sent import Sent
from collm.cluster.spreading import Spreader
from collm.cluster.timing import Timing
from collm.lora.config import LoraConfig
from collm.model.checkpoint import Checkpoint
from collm.replica.assembly import Replica, claim_data, open_replica
from collm.replica.settings import SampleSets
from collm.server.service import Membership
from collm.store.front_folder import FrontFolder
from factories.replicas import BASE_MODEL, learning, settings, training
from factories.server_thread import ServerThread, running_server
from factories.waiting import WAIT_S

SECRET = "secret"
ADAPTER = "tutor"
_PATIENT = RegistryConfig(timeout_s=WAIT_S, dead_after_s=WAIT_S)
"""A machine that has far too much to do makes no replica a dead one."""
_LONGEST_S = 300.0
"""Longest that rounds take together, on a machine however busy."""


class SkippingClock(MonotonicClock):
    """The machine's clock, of which a test skips what it need not wait for."""

    def __init__(self) -> None:
        self._skipped_s = 0.0

    def skip(self, seconds: float) -> None:
        self._skipped_s += seconds

    def now_s(self) -> float:
        return super().now_s() + self._skipped_s


def chats(subject: str, answers: Sequence[str], count: int = 120) -> tuple[Sample, ...]:
    """Questions about a subject whose answers take turns."""
    rows = [
        [
            {"role": "user", "content": f"{subject} {number}?"},
            {"role": "assistant", "content": answers[number % len(answers)]},
        ]
        for number in range(count)
    ]
    return tuple(parse_sample(json.dumps({"messages": row})) for row in rows)


@dataclass
class LiveReplica:
    """A replica that serves; ``kill`` lets it vanish."""

    name: str
    replica: Replica
    server: ServerThread

    @property
    def url(self) -> str:
        return self.server.url

    def kill(self) -> None:
        self.server.ask_to_stop()
        self.server.join()

    @property
    def active(self) -> str | None:
        versions = self.replica.client.versions()
        return next((str(info.version) for info in versions if info.is_active), None)

    @property
    def num_steps(self) -> int:
        """Optimizer steps taken."""
        return int(self.replica.client.snapshot()["adapters"][ADAPTER]["step"])


@contextmanager
def live_replica(
    checkpoint: Path, folder: Path, name: str, samples: Sequence[Sample], **job: Any
) -> Iterator[LiveReplica]:
    """A replica of a cluster that learns ``ADAPTER`` from its own samples in rounds."""
    rooms = settings(
        folder / name,
        lora=LoraConfig(max_rank=4, num_slots=8),
        training=training(learning(ADAPTER, **job), rounds=(ADAPTER,)),
        name=name,
    )
    sets = SampleSets(by_name={"chats": samples})
    replica = open_replica(Checkpoint(checkpoint), rooms, sets, claim_data(rooms))
    try:
        with running_server(backends_of(replica), Membership(name, SECRET)) as server:
            yield LiveReplica(name, replica, server)
    finally:
        replica.close()


def coordinate(
    folder: Path,
    replicas: Sequence[LiveReplica],
    config: RoundConfig,
    is_done: Callable[[dict[str, Any]], bool],
    *,
    between: Callable[[dict[str, Any]], None] = lambda status: None,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Run a coordinator until its adapter's status ``is_done``; return that.

    What is on record may not have reached the replicas yet, and then never does: ``is_done`` asks
    them as well.
    """
    endpoints = folder / "endpoints.json"
    write_endpoints(
        endpoints,
        [
            Endpoint(replica_id=it.name, url=it.url, pid=1, started_at_s=time.time())
            for it in replicas
        ],
    )
    timing = Timing(clock or MonotonicClock(), time.time, asyncio.sleep)
    return asyncio.run(_coordinate(folder, endpoints, config, is_done, between, timing))


async def _coordinate(
    folder: Path,
    endpoints: Path,
    config: RoundConfig,
    is_done: Callable[[dict[str, Any]], bool],
    between: Callable[[dict[str, Any]], None],
    timing: Timing,
) -> dict[str, Any]:
    sent = Sent()
    async with httpx.AsyncClient(trust_env=False) as http:
        registry = Registry(HttpSnapshotSource(http), sent, MonotonicClock(), _PATIENT)
        members = Members(lambda: registry.table, lambda url: ReplicaControl(http, url, SECRET))
        with FrontFolder(folder / "front", max_versions=20, now_s=time.time) as front:
            coordinator = Coordinator(
                [config],
                members,
                front,
                ChildAggregator(),
                timing,
                base_model=BASE_MODEL,
                demand=sent.demand,
                spreader=Spreader(members, front, timing, within_s=WAIT_S),
            )
            tasks = [
                asyncio.create_task(registry.run(EndpointsWatch(endpoints))),
                asyncio.create_task(coordinator.run()),
            ]
            try:
                async with asyncio.timeout(_LONGEST_S):
                    while not is_done(status := coordinator.status()[config.adapter]):
                        await asyncio.to_thread(between, status)
                        await asyncio.sleep(0.05)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            return status
