"""Does sharing out traffic and training harm users? One trace, with the policy off and on.

Starts `collm serve` with two replicas that learn `clinc150`, each by itself, once for each policy,
and replays the same requests over HTTP. Shown are SLO attainment, requests within the objectives
per second, training tokens and the quality that is served at the end, with how the last
allocation shared out the traffic.

Run as: python benchmarks/planning.py
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from common import Report, make_parser, progress

# isort: split
import httpx

from collm.clock import MonotonicClock
from collm.metrics.attainment import measure_attainment
from collm.metrics.goodput import throughput_per_s
from collm.metrics.records import RequestRecord
from collm.pacing.config import Objectives
from collm.workload.config import WorkloadConfig
from collm.workload.replay import ReplayTarget, replay
from collm.workload.requests import WorkloadRequest, build_requests, filler_text
from collm.workload.samples import load_samples
from collm.workload.traces import load_trace
from slo_plan import TRACE, cut_block, scale_lengths

ADAPTER = "learner"
POLICIES = ("none", "adaptive")
NUM_REPLICAS = 2
_MAX_OUTPUT_TOKENS = 64
_READY_S = 120.0
_PORT = 8423


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one policy came to."""

    policy: str
    records: Sequence[RequestRecord]
    states: dict[str, dict[str, Any]]
    """By replica, its snapshot at the end of the trace."""
    allocation: dict[str, Any] | None


def main() -> None:
    parser = make_parser(__doc__ or "", rounds=1, rounds_are="repetitions")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rate", type=float, default=1.0, help="requests/s over both replicas")
    parser.add_argument("--seconds", type=float, default=150.0, help="length of the trace")
    parser.add_argument("--period-s", type=float, default=20.0, help="between two allocations")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seconds, arguments.period_s = 30.0, 5.0
    report = Report("Two replicas, with and without sharing out traffic and training", arguments)
    rows = []
    for _ in range(arguments.rounds):
        for policy in POLICIES:
            rows.append(row(serve(arguments, policy), arguments.seconds))
            progress(f"{rows[-1]}")
    report.table(f"{arguments.rate:g} requests/s for {arguments.seconds:g} s", rows)
    report.finish()


def serve(arguments: argparse.Namespace, policy: str) -> Run:
    """Start a cluster, replay the trace, and return what became of it."""
    with tempfile.TemporaryDirectory(prefix="collm-planning-") as folder:
        values = (
            f"replica.data_dir={folder}",
            f"server.port={_PORT}",
            "memory.kv_cache_mib=256",
            f"cluster.planning.policy={policy}",
            f"cluster.planning.period_s={arguments.period_s:g}",
        )
        command = [
            *(sys.executable, "-m", "collm", "serve", "--replicas", str(NUM_REPLICAS)),
            *("--train", f"{ADAPTER}=clinc150"),
            *(part for value in values for part in ("--set", value)),
        ]
        with (Path(folder) / "serve.log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                return asyncio.run(run(arguments, policy, server))
            finally:
                server.terminate()
                server.wait(60.0)


async def run(arguments: argparse.Namespace, policy: str, server: "subprocess.Popen[bytes]") -> Run:
    url = f"http://127.0.0.1:{_PORT}"
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        await ready(client, server)
        # One allocation is made before anything arrives, as in a cluster that has run for a while.
        await asyncio.sleep(arguments.period_s)
        target = ReplayTarget(base_url=url, model=ADAPTER)
        records = await replay(requests_of(arguments), target, MonotonicClock())
        states = await states_of(client)
        allocation = await client.get("/cluster/allocation")
        found = allocation.json() if allocation.status_code == 200 else None
    return Run(policy=policy, records=records, states=states, allocation=found)


async def ready(client: httpx.AsyncClient, server: "subprocess.Popen[bytes]") -> None:
    """Wait until every replica serves what it learns, and what is served has been measured."""
    ends_s = time.monotonic() + _READY_S
    while time.monotonic() < ends_s:
        if server.poll() is not None:
            raise SystemExit("collm serve ended")
        with contextlib.suppress(httpx.HTTPError, KeyError, TypeError, ValueError):
            states = await states_of(client)
            if sum(ADAPTER in one["quality"] for one in states.values()) == NUM_REPLICAS:
                return
        await asyncio.sleep(0.5)
    raise SystemExit(f"not every replica serves {ADAPTER} after {_READY_S:g} s")


async def states_of(client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    replicas = (await client.get("/cluster")).json()["replicas"]
    return {one["id"]: one["state"] for one in replicas}


def requests_of(arguments: argparse.Namespace) -> tuple[WorkloadRequest, ...]:
    rows = scale_lengths(load_trace(TRACE), _MAX_OUTPUT_TOKENS)
    count = round(arguments.rate * arguments.seconds)
    block = cut_block(rows, 1 + 997 * arguments.seed, count, arguments.seconds)
    filler = filler_text(load_samples("medquad", "test"))
    return build_requests(block, (), filler, WorkloadConfig(scored_share=0.0), arguments.seed)


def row(one: Run, duration_s: float) -> dict[str, str]:
    objectives = Objectives()
    attainment = measure_attainment(one.records, objectives)
    done = [state["totals"]["adapters"][ADAPTER] for state in one.states.values()]
    quality = fmean(state["quality"][ADAPTER] for state in one.states.values())
    traffic = "–"
    if one.allocation is not None:
        shares = one.allocation["adapters"][ADAPTER]["traffic"]
        traffic = " ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items()))
    sizes = [d["num_trained_tokens"] / max(1, d["num_steps"]) for d in done]
    return {
        "policy": one.policy,
        "attainment": "–" if attainment.share is None else f"{attainment.share:.1%}",
        "within objectives/s": f"{throughput_per_s(one.records, objectives, duration_s):.3f}",
        "requests here": " ".join(str(d["num_ended"]) for d in done),
        "training tokens": str(sum(d["num_trained_tokens"] for d in done)),
        "tokens a step": " ".join(f"{size:.0f}" for size in sizes),
        "quality": f"{quality:.3f}",
        "last traffic": traffic,
    }


if __name__ == "__main__":
    main()
