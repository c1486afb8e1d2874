"""Does anybody notice that replicas are killed, but for the answers that they were giving?

    python benchmarks/replica_kills.py [--minutes 30] [--every-s 120]

``collm serve`` with two replicas, which learn half of clinc150 each and all of it together in short
rounds, answers the requests of a real trace. Every two minutes one of the two gets a SIGKILL. No
request may hang, none may be answered by a wrong version, and none may be lost before its first
token. The machine need not be quiet; times in which all of it stands still are left out, and an
answer that still gets tokens after a minute is slow: it is counted, and does not hang.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx

from collm.cli.demo_session import prepare_folder
from collm.cli.demo_settings import ADAPTER, TASK, DemoSettings
from collm.cli.demo_sites import cluster_settings, deal_sites, write_samples
from collm.cli.demo_traffic import MAX_SCORED_TOKENS, TRACE
from collm.cluster.config import FRONT
from collm.cluster.endpoints import read_endpoints
from collm.metrics.records import RequestRecord
from collm.model.config import DEFAULT_MODEL
from collm.store.decisions import DecisionKind
from collm.store.front_folder import FrontFolder
from collm.workload.config import WorkloadConfig
from collm.workload.replay import ReplayTarget, replay
from collm.workload.requests import WorkloadRequest, build_requests, filler_text
from collm.workload.samples import load_samples
from collm.workload.traces import load_trace
from collm.workload.transforms import clip_lengths, divide_lengths, scale_time, thin_keeping_bursts
from replica_kills_checks import Answer, Look, Promotion, Stall, judge

NUM_REPLICAS = 2
TOKENS_PER_ROUND = 1_500
"""A member's, so that a round ends about every half minute."""
GATE_SAMPLES = 24
TIMEOUT_S = 60.0
"""A client's patience."""
DAY_S = 86_400.0
_READY = re.compile(r"collm is ready at (\S+)")
_LOOK_S = 0.5
_STALL_S = 5.0
"""A look that comes so much later was not late, but the machine stood still."""
_CALM_S = 30.0
"""No kill in the last seconds, so that the end shows that everybody is back."""


class AwakeClock:
    """Monotonic time without the times in which the machine stood still.

    Whoever watches must ask for the time more often than ``_STALL_S``.
    """

    def __init__(self) -> None:
        self.stalls: list[Stall] = []
        self._asleep_s = 0.0
        self._asked_s = time.monotonic()

    def now_s(self) -> float:
        """Return seconds awake since an arbitrary origin."""
        now_s = time.monotonic()
        gap_s, self._asked_s = now_s - self._asked_s, now_s
        if gap_s > _STALL_S:
            self._asleep_s += gap_s
            self.stalls.append(Stall(time.time() - gap_s, time.time()))
        return now_s - self._asleep_s

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds awake."""
        until_s = self.now_s() + seconds
        while (left_s := until_s - self.now_s()) > 0.0:
            await asyncio.sleep(min(left_s, _LOOK_S))


@dataclass
class Kill:
    """One replica's end, and what followed; times in seconds since it."""

    replica: str
    at_s: float
    out_s: float | None = None
    """When the front knew."""
    back_s: float | None = None
    """When it was live again."""
    agreed_s: float | None = None
    """When every replica served the active version again."""


@dataclass
class Observer:
    """Looks at the cluster, and kills when it is time."""

    http: httpx.AsyncClient
    endpoints: Path
    clock: AwakeClock
    random: Random
    every_s: float
    until_s: float
    """No kill after this time."""
    kills: list[Kill] = field(default_factory=list)
    digests: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    looks: list[Look] = field(default_factory=list)
    num_rounds: int = 0

    async def run(self) -> None:
        """Go on until cancelled."""
        next_s = self.clock.now_s() + self.every_s
        for number in itertools.count():
            await self.clock.sleep(_LOOK_S)
            try:
                is_well = self._look((await self.http.get("/cluster")).raise_for_status().json())
                if number % 10 == 0:
                    await self._compare_versions()
            except httpx.HTTPError:
                self._note(None)
                continue
            now_s = self.clock.now_s()
            if is_well and next_s <= now_s < self.until_s:
                self._kill()
                next_s = now_s + self.every_s

    def _note(self, num_live: int | None) -> None:
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        self.looks.append(Look(time.time(), num_live, load))

    def _look(self, state: dict[str, Any]) -> bool:
        """Note how far the latest kill's replica is; return whether everybody is well."""
        live = {row["id"] for row in state["replicas"] if row["is_live"]}
        self._note(len(live))
        learned = state["rounds"][ADAPTER]
        self.num_rounds = max((one["round"] for one in learned["rounds"]), default=0)
        serving = state["adapters"].get(ADAPTER, {})
        is_whole = len(live) == NUM_REPLICAS
        agree = is_whole and {serving.get(name) for name in live} == {learned["active"]}
        if self.kills:
            kill = self.kills[-1]
            after_s = self.clock.now_s() - kill.at_s
            if kill.out_s is None and kill.replica not in live:
                kill.out_s = after_s
            if kill.back_s is None and kill.out_s is not None and is_whole:
                kill.back_s = after_s
            if kill.agreed_s is None and kill.back_s is not None and agree:
                kill.agreed_s = after_s
            return kill.agreed_s is not None
        return is_whole

    async def _compare_versions(self) -> None:
        rows = (await self.http.get("/adapters")).raise_for_status().json()["data"]
        for row in rows:
            self.digests[row["version"]].add(row["digest"])

    def _kill(self) -> None:
        chosen = self.random.choice(read_endpoints(self.endpoints))
        os.kill(chosen.pid, signal.SIGKILL)
        self.kills.append(Kill(chosen.replica_id, self.clock.now_s()))
        say(f"killed {chosen.replica_id}; round {self.num_rounds}")


def make_requests(minutes: float, requests_per_s: float, seed: int) -> tuple[WorkloadRequest, ...]:
    """Return a day of the trace in so many minutes, thinned out to the rate."""
    trace = scale_time(load_trace(TRACE), 60.0 * minutes / DAY_S)
    trace = thin_keeping_bursts(trace, requests_per_s * 60.0 * minutes / len(trace), seed)
    trace = clip_lengths(divide_lengths(trace, 2.0), 128, 64)
    filler = filler_text(load_samples("medquad", "test"))
    config = WorkloadConfig(max_scored_tokens=MAX_SCORED_TOKENS)
    return build_requests(trace, load_samples(TASK, "test"), filler, config, seed)


def configure(folder: Path, arguments: argparse.Namespace) -> Path:
    """Write the cluster's configuration and samples; return the former's file."""
    settings = DemoSettings(
        minutes=arguments.minutes, requests_per_s=arguments.requests_per_s, seed=arguments.seed,
        out=folder, port=0, model=arguments.model, budget="latency", num_replicas=NUM_REPLICAS,
    )  # fmt: skip
    sites = deal_sites(NUM_REPLICAS)
    configuration = cluster_settings(settings, sites)
    (rounds,) = configuration["cluster"]["rounds"]
    rounds |= {"tokens_per_round": TOKENS_PER_ROUND, "gate": {"max_samples": GATE_SAMPLES}}
    path = prepare_folder(settings, configuration)
    write_samples(settings, sites)
    return path


@contextlib.contextmanager
def serving(configuration: Path, log_path: Path) -> Iterator[str]:
    """Start the cluster; yield its URL when it is ready."""
    command = [sys.executable, "-m", "collm", "serve", "--config", str(configuration)]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        while not (found := _READY.search(log_path.read_text())):
            assert process.poll() is None, f"the server ended: {log_path}"
            time.sleep(0.2)
        yield found[1]
    finally:
        process.terminate()
        process.wait()


async def play(
    url: str, folder: Path, requests: tuple[WorkloadRequest, ...], arguments: argparse.Namespace
) -> tuple[list[Answer], Observer]:
    """Replay and kill."""
    clock, answers = AwakeClock(), list[Answer]()

    def add(record: RequestRecord) -> None:
        now_s = time.time()
        took_s = clock.now_s() - record.arrived_at_s
        answers.append(Answer(record, now_s - took_s, now_s))

    async with httpx.AsyncClient(base_url=url, timeout=5.0, trust_env=False) as http:
        observer = Observer(
            http=http,
            endpoints=folder / "data" / FRONT / "endpoints.json",
            clock=clock,
            random=Random(arguments.seed),
            every_s=arguments.every_s,
            until_s=clock.now_s() + 60.0 * arguments.minutes - _CALM_S,
        )
        watching = asyncio.create_task(observer.run())
        target = ReplayTarget(base_url=url, model=ADAPTER, timeout_s=TIMEOUT_S)
        await replay(requests, target, clock, on_record=add, sleep=clock.sleep)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return answers, observer


def promotions_of(folder: Path) -> tuple[list[Promotion], int]:
    """Return what the front promoted, from the folder that it left.

    Also how many of the promotions missed a live replica in their time.
    """
    path = folder / "data" / FRONT
    with FrontFolder(path, max_versions=1_000, now_s=time.time) as front:
        promotions = [
            Promotion(one.decided_at_s, one.version)
            for one in front.decisions.history(ADAPTER)
            if one.kind is DecisionKind.PROMOTION and one.version is not None
        ]
        spreads = [one.results.get("promotion", {}) for one in front.rounds.latest(ADAPTER, 1_000)]
    return promotions, sum(spread.get("is_partial", False) for spread in spreads)


def say(text: str) -> None:
    """Say how far the run is."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run, and end with 1 if something happened that must not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="of traffic")
    parser.add_argument("--every-s", type=float, default=120.0, help="time between two kills")
    parser.add_argument("--requests-per-s", type=float, default=0.8)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there too")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="collm-kills-"))
    say(f"folder {folder}")
    requests = make_requests(arguments.minutes, arguments.requests_per_s, arguments.seed)
    with serving(configure(folder, arguments), folder / "server.log") as url:
        answers, observer = asyncio.run(play(url, folder, requests, arguments))
    (promotions, num_partial), stalls = promotions_of(folder), observer.clock.stalls
    digests = {version: frozenset(seen) for version, seen in observer.digests.items()}
    findings = judge(answers, promotions, digests, stalls, observer.looks)
    found = {
        **asdict(findings),
        "rounds": observer.num_rounds,
        "promotions": len(promotions),
        "partial_promotions": num_partial,
        "kills": [asdict(kill) for kill in observer.kills],
        "unanswered_looks": sum(look.num_live is None for look in observer.looks),
        "stalls_s": [stall.ended_at_s - stall.begun_at_s for stall in stalls],
    }
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print("nothing was lost, hung or wrong" if findings.is_clean else f"not clean: see {folder}")
    raise SystemExit(not findings.is_clean)


if __name__ == "__main__":
    main()
