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
from collm.clock import MonotonicClock
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

SECRET = "secret"
ADAPTER = "tutor"


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
        if self.server._thread.is_alive():
            self.server.ask_to_stop()
            self.server.join()

    @property
    def active(self) -> str | None:
        versions = self.replica.client.versions()
        return next((str(info.version) for info in versions if info.is_active), None)


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
    timeout_s: float = 120.0,
    between: Callable[[dict[str, Any]], None] = lambda status: None,
) -> dict[str, Any]:
    """Run a coordinator until its adapter's status ``is_done``; return that."""
    endpoints = folder / "endpoints.json"
    write_endpoints(
        endpoints,
        [
            Endpoint(replica_id=it.name, url=it.url, pid=1, started_at_s=time.time())
            for it in replicas
        ],
    )
    return asyncio.run(_coordinate(folder, endpoints, config, is_done, timeout_s, between))


async def _coordinate(
    folder: Path,
    endpoints: Path,
    config: RoundConfig,
    is_done: Callable[[dict[str, Any]], bool],
    timeout_s: float,
    between: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    clock, sent = MonotonicClock(), Sent()
    async with httpx.AsyncClient(trust_env=False) as http:
        registry = Registry(HttpSnapshotSource(http), sent, clock, RegistryConfig())
        members = Members(lambda: registry.table, lambda url: ReplicaControl(http, url, SECRET))
        timing = Timing(clock, time.time, asyncio.sleep)
        with FrontFolder(folder / "front", max_versions=20, now_s=time.time) as front:
            coordinator = Coordinator(
                [config],
                members,
                front,
                ChildAggregator(),
                timing,
                base_model=BASE_MODEL,
                demand=sent.demand,
                spreader=Spreader(members, front, timing),
            )
            tasks = [
                asyncio.create_task(registry.run(EndpointsWatch(endpoints))),
                asyncio.create_task(coordinator.run()),
            ]
            try:
                async with asyncio.timeout(timeout_s):
                    while not is_done(status := coordinator.status()[config.adapter]):
                        await asyncio.to_thread(between, status)
                        await asyncio.sleep(0.05)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            return status
