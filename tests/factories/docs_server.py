"""A tiny replica under the names that the pages use, alone and behind a front."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx

from collm.cli.replica_process import backends_of
from collm.clock import MonotonicClock
from collm.cluster.endpoints import Endpoint, write_endpoints
from collm.cluster.endpoints_watch import EndpointsWatch
from collm.cluster.http_source import HttpSnapshotSource
from collm.cluster.registry import Registry
from collm.cluster.router import Router
from collm.cluster.routing_config import RegistryConfig, RouterConfig
from collm.cluster.sent import Sent
from collm.cluster.spreading import Spread
from collm.engine.config import MemoryConfig
from collm.lora.config import LoraConfig
from collm.model.checkpoint import Checkpoint
from collm.replica.assembly import claim_data, open_replica
from collm.replica.config import ReplicaConfig
from collm.replica.settings import SampleSets
from collm.server.config import ServerConfig
from collm.server.front.app import make_front_app
from collm.server.front.backends import FrontBackends
from collm.server.front.run import serve_front
from collm.server.run import bind
from collm.server.service import Membership
from collm.store.decisions import Decision
from collm.types import BASE, VersionId
from factories.checkpoints import tiny_checkpoint
from factories.replicas import SAMPLES, learning, publish_on_disk, settings, training
from factories.server_thread import running_server
from factories.waiting import WAIT_S, wait_until

REPLICA = "banking"
ADAPTERS = ("intents", "support")


class OneRound:
    """Learning together, of which the first round is done."""

    def status(self) -> dict[str, Any]:
        rounds = [{"round": 1, "status": "done"}]
        return {"intents": {"active": "intents@1", "pause": None, "rounds": rounds}}

    def refusals(self, adapter: str, limit: int | None) -> Sequence[Decision]:
        return ()

    async def promote(self, version: VersionId) -> Spread:
        return Spread(version=version, reached=(REPLICA,), missed={})

    async def roll_back(self, adapter: str) -> Spread:
        return Spread(version=BASE, reached=(REPLICA,), missed={})


@dataclass(frozen=True, slots=True)
class DocsServer:
    """Where the replica and its front answer, and what it keeps where."""

    url: str
    front_url: str
    data_dir: Path
    import_root: Path
    guest: Path
    """A PEFT folder."""

    def restore(self) -> None:
        """End what a page has started, and serve again what was served: the next finds the same."""
        with httpx.Client(base_url=self.url, timeout=WAIT_S) as http:
            for job in http.get("/v1/fine_tuning/jobs").json()["data"]:
                if job["finished_at"] is None and job["adapter"] != "intents":
                    http.post(f"/v1/fine_tuning/jobs/{job['id']}/cancel").raise_for_status()
            for version in (f"{adapter}@{number}" for adapter in ADAPTERS for number in (2, 3)):
                http.post("/adapters/promote", json={"version": version}).raise_for_status()


@contextmanager
def docs_server(folder: Path) -> Iterator[DocsServer]:
    """Serve: ``intents`` may learn, and rests; both adapters have three versions."""
    checkpoint = tiny_checkpoint(folder, "llama")
    data_dir, import_root = folder / "data", folder / "imports"
    for adapter in ADAPTERS:
        publish_on_disk(checkpoint, data_dir, 1, 2, 3, adapter=adapter, num_promoted=3)
    guest = data_dir / "adapters" / "support" / "1"
    rooms = settings(
        data_dir,
        name=REPLICA,
        replica=ReplicaConfig(
            data_dir=str(data_dir),
            threads=1,
            min_promotion_interval_s=0.0,
            import_root=str(import_root),
        ),
        memory=MemoryConfig(kv_cache_mib=4),
        lora=LoraConfig(max_rank=16, num_slots=12),
        training=training(learning("intents")),
    )
    rooms = replace(rooms, base_model="smollm2-135m-instruct")
    replica = open_replica(
        Checkpoint(checkpoint), rooms, SampleSets(by_name={"chats": SAMPLES}), claim_data(rooms)
    )
    try:
        with (
            running_server(backends_of(replica), Membership(REPLICA, "secret")) as server,
            _front_of(server.url, folder) as front_url,
        ):
            _let_rest(server.url, "intents")
            yield DocsServer(server.url, front_url, data_dir, import_root, guest)
    finally:
        replica.close()


def _let_rest(url: str, adapter: str) -> None:
    """Pause an adapter's job, which would take the processor from what the pages run."""
    jobs = f"{url}/v1/fine_tuning/jobs"
    (job,) = (
        one for one in httpx.get(jobs, timeout=WAIT_S).json()["data"] if one["adapter"] == adapter
    )
    wait_until(
        lambda: httpx.get(f"{jobs}/{job['id']}", timeout=WAIT_S).json()["status"] == "running"
    )
    httpx.post(f"{jobs}/{job['id']}/pause", timeout=WAIT_S).raise_for_status()


@contextmanager
def _front_of(url: str, folder: Path) -> Iterator[str]:
    """Serve a front of one replica, in a thread."""
    endpoints = folder / "endpoints.json"
    write_endpoints(
        endpoints, [Endpoint(replica_id=REPLICA, url=url, pid=1, started_at_s=time.time())]
    )
    ready: Future[tuple[str, Callable[[], object]]] = Future()
    thread = threading.Thread(target=_run_front, args=(endpoints, ready), daemon=True)
    thread.start()
    front_url, stop = ready.result(WAIT_S)
    try:
        wait_until(lambda: httpx.get(f"{front_url}/health", timeout=WAIT_S).status_code == 200)
        yield front_url
    finally:
        stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def _run_front(endpoints: Path, ready: "Future[tuple[str, Callable[[], object]]]") -> None:
    try:
        asyncio.run(_serve_front(endpoints, ready))
    except BaseException as error:
        if ready.done():
            raise
        ready.set_exception(error)


async def _serve_front(endpoints: Path, ready: "Future[tuple[str, Callable[[], object]]]") -> None:
    clock, sent, stop = MonotonicClock(), Sent(), asyncio.Event()
    async with httpx.AsyncClient(trust_env=False) as http:
        registry = Registry(HttpSnapshotSource(http), sent, clock, RegistryConfig())
        backends = FrontBackends(
            registry=registry,
            router=Router(RouterConfig(), Random(0)),
            sent=sent,
            clock=clock,
            rounds=OneRound(),
        )
        config = ServerConfig(port=0)
        stopper = partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set)
        await serve_front(
            make_front_app(backends, config),
            bind(config),
            stop,
            lambda url: ready.set_result((url, stopper)),
            (lambda: registry.run(EndpointsWatch(endpoints)),),
        )
