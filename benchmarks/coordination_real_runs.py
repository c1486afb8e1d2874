"""The servers behind benchmarks/coordination_real.py: two replicas, and what became of a trace."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import httpx

from collm.clock import MonotonicClock
from collm.metrics.records import RequestRecord
from collm.types import VersionId
from collm.workload.replay import ReplayTarget, replay
from collm.workload.requests import WorkloadRequest

ADAPTER = "learner"
_DATA = "clinc150"
_NUM_REPLICAS = 2
_PORT = 8423
_READY_S = 300.0
_LOOK_S = 0.5
_LATEST_S = 1.0
"""Until the front has every replica's last answer in its snapshots."""
_STOP_S = 60.0

States = Mapping[str, dict[str, Any]]
"""By replica, its snapshot."""
Qualities = dict[VersionId, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all arms have alike."""

    model: str
    """The base model: a folder, a file or a known name."""
    dtype: str
    period_s: float
    """Between two allocations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to run the two replicas."""

    name: str
    policy: Literal["none", "adaptive"] = "none"
    """Of ``cluster.planning``."""
    is_routed: bool = True
    """Whether the front chooses a replica; otherwise requests go to each in turn."""
    learns: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What an arm came to."""

    arm: Arm
    records: Sequence[RequestRecord]
    qualities: Qualities
    """Of every version that served, as its replica measured it last."""
    states: States
    """At the end of the trace."""
    trained_tokens: int
    """In finished optimizer steps, from the first request to the last answer."""
    allocation: dict[str, Any] | None

    @property
    def final_quality(self) -> float:
        """Mean over replicas of the quality of what they serve at the end."""
        return fmean(self.qualities[one["active"][ADAPTER]] for one in self.states.values())

    @property
    def num_ended(self) -> list[int]:
        """Answers of each replica."""
        return [_totals(one).get("num_ended", 0) for _, one in sorted(self.states.items())]

    @property
    def traffic(self) -> list[float]:
        """Each replica's share of the traffic in the last allocation; none without one."""
        if self.allocation is None:
            return []
        shares = self.allocation["adapters"][ADAPTER]["traffic"]
        return [share for _, share in sorted(shares.items())]


def warm_up(setting: Setting, folder: Path, seconds: float) -> Qualities:
    """Let two replicas learn with nothing to serve; their data stay in ``folder``.

    Returns:
        The quality of what they serve then.
    """

    async def learn() -> Qualities:
        found: Qualities = {}
        async with _ready(server, arm) as client:
            await asyncio.sleep(seconds)
            _note(await _states(client), found)
        return found

    arm = Arm(name="warm-up")
    with _server(setting, arm, folder) as server:
        return asyncio.run(learn())


def run_arm(
    setting: Setting,
    arm: Arm,
    folder: Path,
    requests: Sequence[WorkloadRequest],
    known: Mapping[VersionId, float],
) -> Run:
    """Serve what is in ``folder``, replay, and return what became of it.

    Args:
        setting: As for all arms.
        arm: How to serve.
        folder: The replicas' data; changed.
        requests: What to replay.
        known: Quality of the versions in ``folder``.
    """

    async def follow() -> Run:
        async with _ready(server, arm) as client:
            if arm.policy == "adaptive":  # as in a cluster that has run for a while
                await asyncio.sleep(setting.period_s + 1.0)
            qualities, before = dict(known), await _states(client)
            watch = asyncio.create_task(_watch(client, qualities))
            try:
                records = await _replay(client, arm, requests)
            finally:
                watch.cancel()
            await asyncio.sleep(_LATEST_S)
            states = await _states(client)
            _note(states, qualities)
            return Run(
                arm=arm,
                records=records,
                qualities=qualities,
                states=states,
                trained_tokens=_trained(states) - _trained(before),
                allocation=await _allocation(client),
            )

    with _server(setting, arm, folder) as server:
        return asyncio.run(follow())


async def _replay(
    client: httpx.AsyncClient, arm: Arm, requests: Sequence[WorkloadRequest]
) -> list[RequestRecord]:
    urls = [f"http://127.0.0.1:{_PORT}"]
    if not arm.is_routed:
        urls = [row["url"] for row in await _rows(client)]
    clock = MonotonicClock()
    parts = [
        replay(requests[place :: len(urls)], ReplayTarget(base_url=url, model=ADAPTER), clock)
        for place, url in enumerate(urls)
    ]
    return [record for part in await asyncio.gather(*parts) for record in part]


@contextlib.contextmanager
def _server(setting: Setting, arm: Arm, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    values = (
        f"model.source={setting.model}",
        f"model.dtype={setting.dtype}",
        f"replica.data_dir={folder}",
        f"server.port={_PORT}",
        "memory.kv_cache_mib=256",
        f"cluster.planning.policy={arm.policy}",
        f"cluster.planning.period_s={setting.period_s:g}",
    )
    command = [
        *(sys.executable, "-m", "collm", "serve", "--replicas", str(_NUM_REPLICAS)),
        *(("--train", f"{ADAPTER}={_DATA}") if arm.learns else ()),
        *(part for value in values for part in ("--set", value)),
    ]
    folder.mkdir(exist_ok=True)
    with (folder / "serve.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield server
        finally:
            server.terminate()
            server.wait(_STOP_S)


@contextlib.asynccontextmanager
async def _ready(server: "subprocess.Popen[bytes]", arm: Arm) -> AsyncIterator[httpx.AsyncClient]:
    """Wait until both replicas serve the adapter and, where they learn, have measured it."""
    place = "quality" if arm.learns else "active"
    ends_s = time.monotonic() + _READY_S
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{_PORT}", trust_env=False) as client:
        while time.monotonic() < ends_s:
            if server.poll() is not None:
                raise SystemExit("collm serve ended")
            with contextlib.suppress(httpx.HTTPError, KeyError, TypeError, ValueError):
                states = await _states(client)
                if sum(ADAPTER in one[place] for one in states.values()) == _NUM_REPLICAS:
                    break
            await asyncio.sleep(_LOOK_S)
        else:
            raise SystemExit(f"not every replica serves {ADAPTER} after {_READY_S:g} s")
        yield client


async def _watch(client: httpx.AsyncClient, qualities: Qualities) -> None:
    """Note what versions are worth, until cancelled; promotions are seconds apart."""
    while True:
        with contextlib.suppress(httpx.HTTPError):
            _note(await _states(client), qualities)
        await asyncio.sleep(_LOOK_S)


def _note(states: States, qualities: Qualities) -> None:
    for one in states.values():
        if ADAPTER in one["quality"] and ADAPTER in one["active"]:
            qualities[VersionId(one["active"][ADAPTER])] = one["quality"][ADAPTER]


async def _rows(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    rows = (await client.get("/cluster")).json()["replicas"]
    return sorted(rows, key=lambda row: str(row["id"]))


async def _states(client: httpx.AsyncClient) -> States:
    return {row["id"]: row["state"] for row in await _rows(client)}


async def _allocation(client: httpx.AsyncClient) -> dict[str, Any] | None:
    answer = await client.get("/cluster/allocation")
    return answer.json() if answer.status_code == httpx.codes.OK else None


def _totals(state: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = state["totals"]["adapters"].get(ADAPTER, {})
    return found


def _trained(states: States) -> int:
    return sum(_totals(one).get("num_trained_tokens", 0) for one in states.values())
