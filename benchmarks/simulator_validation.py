"""Does the simulator say what real replicas do? One trace, both ways.

    python benchmarks/simulator_validation.py --replicas 2 --folder validation

Profiles this machine with as many replicas side by side as will run (they share its memory and
caches), serves with `collm serve`, each replica learning an adapter by itself, and replays a trace
over HTTP. The simulator then gets the same arrivals, with the prompt lengths that the server
counted, the mean of the profiles, and what replicas had trained on by then. Compared are SLO
attainment (bar: 3 points), throughput within the objectives and training tokens (bar: 10 %). The
folder keeps profiles, records, the report, and a recording of all that a simulation needs:
`--again recording.json.gz` simulates it alone.

A machine is not as fast at one time as at another. So the trace is simulated twice: as the profile
says, and as many times as slow as all steps of the run took by their metrics. What comes out
depends on luck on either side: simulated figures are means over seeds.

Replicas train for a while before the trace. At first micro-batches still grow, and each promotion
makes a replica better than the other by more than chance, so that the router sends it all requests
until the other one has caught up: who is ahead is luck, and no simulation tells it.

Needs an otherwise idle machine, for eight minutes.
"""

import argparse
import asyncio
import contextlib
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx

from collm.clock import MonotonicClock
from collm.metrics.records import RequestRecord
from collm.sim.config import SimConfig
from collm.sim.policies import find_policy
from collm.sim.profile import Profile, load_profile, parse_profile
from collm.sim.simulation import Simulation
from collm.workload.config import WorkloadConfig
from collm.workload.replay import ReplayTarget, replay
from collm.workload.requests import build_requests, filler_text
from collm.workload.samples import load_samples
from collm.workload.traces import load_trace
from collm.workload.transforms import scale_time
from simulator_recording import (
    Figures,
    Recording,
    Work,
    figures,
    lengths,
    load_recording,
    mean_figures,
    simulated,
)
from slo_plan import TRACE, scale_lengths

ADAPTER = "learner"
DATA = "clinc150"
MAX_OUTPUT_TOKENS = 128
READY_S = 300.0
ALONE_S = 300.0
MAX_APART = {"attainment": 0.03, "throughput_per_s": 0.10, "training_tokens": 0.10}
"""Shares of requests, and of the real figure."""


def main() -> None:
    """Profile, replay, simulate, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each replica")
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--rate", type=float, default=0.8, help="requests/s over all replicas")
    parser.add_argument("--profile-s", type=float, default=180.0)
    parser.add_argument(
        "--settle-s",
        type=float,
        default=150.0,
        help="of training before the trace, see above",
    )
    parser.add_argument("--budget", choices=("latency", "objective"), default="latency")
    parser.add_argument("--seed", type=int, default=0, help="of the requests' texts")
    parser.add_argument("--seeds", type=int, default=9, help="simulated runs")
    parser.add_argument("--folder", type=Path, default=Path("simulator-validation"))
    parser.add_argument("--profile", type=Path, help="a measured profile, to measure none")
    parser.add_argument("--port", type=int, default=8417)
    parser.add_argument("--again", type=Path, help="a kept recording, to simulate it alone")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    recording = load_recording(arguments.again) if arguments.again else recorded(arguments)
    alone = recording.profile.training.alone_tokens_per_s
    expected = trained_alone(recording.profile)
    print(f"Training alone: measured {alone} tokens/s, SIMULATED {expected:.0f}.")
    seeds = range(arguments.seeds)
    ways = {
        "as the profile says": [simulated(recording, seed) for seed in seeds],
        f"{recording.slowness:.3f} times as slow": [
            simulated(recording, seed, recording.slowness) for seed in seeds
        ],
    }
    report(recording.real, ways, arguments.folder)


def recorded(arguments: argparse.Namespace) -> Recording:
    """Profile, serve and replay; keep it."""
    profile = measured_profile(arguments)
    run = run_real(arguments)
    recording = Recording(
        profile=profile,
        num_replicas=arguments.replicas,
        budget=arguments.budget,
        duration_s=run.duration_s,
        requests=lengths(run.records),
        warm_tokens=run.warm_tokens,
        slowness=run.slowness(profile),
        real=figures(run.records, run.duration_s, run.done.work),
    )
    recording.save(arguments.folder / "recording.json.gz")
    return recording


def settings(arguments: argparse.Namespace, *extra: str) -> list[str]:
    """Return the settings that profile and replicas share."""
    values = (
        f"replica.threads={arguments.threads}",
        f"pacing.budget={arguments.budget}",
        "memory.kv_cache_mib=512",
        *extra,
    )
    return [part for value in values for part in ("--set", value)]


def measured_profile(arguments: argparse.Namespace) -> Profile:
    """Measure as many profiles at once as there will be replicas; return their mean."""
    if arguments.profile is not None:
        return load_profile(str(arguments.profile))
    files = [arguments.folder / f"profile-{number}.json" for number in range(arguments.replicas)]
    running = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "collm", "profile", "--data", DATA),
                *("--out", str(file), "--seconds", str(arguments.profile_s)),
                *("--seed", str(number), *settings(arguments)),
            ]
        )
        for number, file in enumerate(files)
    ]
    if any(process.wait() for process in running):
        raise SystemExit("profiling failed")
    mean = mean_profile([load_profile(str(file)) for file in files])
    (arguments.folder / "profile.json").write_text(mean.to_json(), encoding="utf-8")
    return mean


def mean_profile(profiles: Sequence[Profile]) -> Profile:
    """Return what is measured on average; names and curves are those of the first."""
    first, *others = [json.loads(one.to_json()) for one in profiles]
    mean = _mean([first, *others]) | {"loss": first["loss"], "miss": first["miss"]}
    return parse_profile(json.dumps(mean), "the mean of all profiles")


def _mean(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {name: _mean([one[name] for one in values]) for name in first}
    if isinstance(first, list):
        return [_mean(list(row)) for row in zip(*values, strict=True)]
    if isinstance(first, float):
        return fmean(values)
    return round(fmean(values)) if isinstance(first, int) else first


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What all replicas did up to some time."""

    training_tokens: float
    serve_s: float
    train_s: float
    num_steps: float
    num_prefill_tokens: float
    num_decode_tokens: float

    @property
    def work(self) -> Work:
        """What of it is compared."""
        return Work(
            training_tokens=self.training_tokens, serve_s=self.serve_s, train_s=self.train_s
        )

    def since(self, before: "Counts") -> "Counts":
        """Return what was done after ``before``."""
        late, early = asdict(self), asdict(before)
        return Counts(**{name: value - early[name] for name, value in late.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """What real replicas did."""

    records: list[RequestRecord]
    duration_s: float
    """Of the trace."""
    warm_tokens: float
    """That a replica had trained on before it, on average."""
    done: Counts
    """While it went on."""

    def slowness(self, profile: Profile) -> float:
        """Return how many times as long as by a profile all steps of the run took."""
        cost, done = profile.step, self.done
        num_context = sum(
            one.num_output_tokens * (one.num_prompt_tokens + one.num_output_tokens / 2)
            for one in self.records
        )
        expected_s = (
            (cost.constant_s + cost.adapter_s) * done.num_steps
            + cost.decode_s * done.num_decode_tokens
            + cost.prefill_s * done.num_prefill_tokens
            + cost.context_s * num_context
        )
        return done.serve_s / expected_s


def run_real(arguments: argparse.Namespace) -> RealRun:
    """Serve and replay."""
    folder = arguments.folder / f"data-{int(time.time())}"
    job = f"training.jobs=[{{adapter: {ADAPTER}, data: {DATA}}}]"
    command = [
        *(sys.executable, "-m", "collm", "serve", "--replicas", str(arguments.replicas)),
        *settings(arguments, job, f"replica.data_dir={folder}", f"server.port={arguments.port}"),
    ]
    if arguments.replicas == 1:
        del command[4:6]
    with (arguments.folder / "serve.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            return asyncio.run(_replay(arguments, server))
        finally:
            server.terminate()
            server.wait(60.0)


async def _replay(arguments: argparse.Namespace, server: "subprocess.Popen[bytes]") -> RealRun:
    url, clock = f"http://127.0.0.1:{arguments.port}", MonotonicClock()
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        await _ready(client, server, arguments.replicas)
        await asyncio.sleep(arguments.settle_s)
        rows = scale_lengths(load_trace(TRACE), MAX_OUTPUT_TOKENS)[: arguments.requests]
        own_per_s = len(rows) / rows[-1].arrived_at_s
        trace = scale_time(rows, own_per_s / arguments.rate)
        filler = filler_text(load_samples("medquad", "test"))
        requests = build_requests(
            trace, (), filler, WorkloadConfig(scored_share=0.0), arguments.seed
        )
        duration_s = trace[-1].arrived_at_s
        before = await _counts(client)
        # Trained beside the whole trace, its last answers left out: as the simulator counts.
        after = asyncio.create_task(_counts_at(client, clock.now_s() + duration_s, clock))
        records = await replay(requests, ReplayTarget(base_url=url, model=ADAPTER), clock)
        done = (await after).since(before)
    start_s = records[0].arrived_at_s - requests[0].at_s
    moved = [_moved(record, start_s) for record in records]
    (arguments.folder / "records.jsonl").write_text(
        "".join(json.dumps(asdict(one)) + "\n" for one in moved), encoding="utf-8"
    )
    return RealRun(
        records=moved,
        duration_s=duration_s,
        warm_tokens=before.training_tokens / arguments.replicas,
        done=done,
    )


async def _ready(
    client: httpx.AsyncClient, server: "subprocess.Popen[bytes]", num_replicas: int
) -> None:
    """Wait until every replica serves the adapter that it learns."""
    ends_s = time.monotonic() + READY_S
    while time.monotonic() < ends_s:
        if server.poll() is not None:
            raise SystemExit("collm serve ended; see serve.log")
        with contextlib.suppress(httpx.HTTPError, KeyError, TypeError, ValueError):
            if await _num_serving(client, num_replicas) == num_replicas:
                return
        await asyncio.sleep(1.0)
    raise SystemExit(f"not every replica serves {ADAPTER} after {READY_S:g} s")


async def _num_serving(client: httpx.AsyncClient, num_replicas: int) -> int:
    if num_replicas == 1:
        models = (await client.get("/v1/models")).json()["data"]
        return sum(one["id"] == ADAPTER for one in models)
    replicas = (await client.get("/cluster")).json()["replicas"]
    return sum(ADAPTER in one["state"]["names"] for one in replicas)


async def _counts_at(client: httpx.AsyncClient, at_s: float, clock: MonotonicClock) -> Counts:
    await asyncio.sleep(at_s - clock.now_s())
    return await _counts(client)


async def _counts(client: httpx.AsyncClient) -> Counts:
    """Return what all replicas have done, from their metrics."""
    text = (await client.get("/metrics")).text

    def total(pattern: str) -> float:
        return sum(map(float, re.findall(rf"^{pattern} (\S+)$", text, re.MULTILINE)))

    return Counts(
        training_tokens=total(r"collm_training_tokens_total\S*"),
        serve_s=total(r'collm_loop_seconds_total\S*work="serve"\S*'),
        train_s=total(r'collm_loop_seconds_total\S*work="(?:train|evaluate)"\S*'),
        num_steps=total(r"collm_steps_total\S*"),
        num_prefill_tokens=total(r'collm_step_tokens_total\S*phase="prefill"\S*'),
        num_decode_tokens=total(r'collm_step_tokens_total\S*phase="decode"\S*'),
    )


def _moved(record: RequestRecord, start_s: float) -> RequestRecord:
    """Count a record's times from the start of the trace."""
    times = {
        name: None if value is None else value - start_s
        for name in ("arrived_at_s", "first_token_at_s", "last_token_at_s", "ended_at_s")
        for value in (getattr(record, name),)
    }
    return replace(record, **times)


def trained_alone(profile: Profile) -> float:
    """Return the tokens per second that a simulated replica trains on when it serves nobody."""
    simulation = Simulation(profile, find_policy("collm"), SimConfig())
    return sum(simulation.run((), ALONE_S).training_tokens.values()) / ALONE_S


def report(real: Figures, ways: Mapping[str, Sequence[Figures]], folder: Path) -> None:
    """Print both sides, how far they are apart and how far they may be, and write it down."""
    value: dict[str, Any] = {"command": sys.argv, "real": asdict(real)}
    for way, runs in ways.items():
        found = mean_figures(runs)
        apart = {
            "attainment": abs(real.attainment - found.attainment),
            "throughput_per_s": _share(found.throughput_per_s, real.throughput_per_s),
            "training_tokens": _share(found.training_tokens, real.training_tokens),
        }
        print(f"\nSIMULATED {way}, mean of {len(runs)} runs (least to most):\n")
        print("| figure | real | SIMULATED | apart | at most | |\n|---|---|---|---|---|---|")
        for name, known in asdict(real).items():
            seen = [asdict(one)[name] for one in runs]
            text = f"{asdict(found)[name]:.4g} ({min(seen):.4g} to {max(seen):.4g})"
            cells = ["", "", ""]
            if name in apart:
                word = "met" if apart[name] <= MAX_APART[name] else "missed"
                cells = [_words(name, apart[name]), _words(name, MAX_APART[name]), word]
            print(f"| {name} | {known:.4g} | {text} | {' | '.join(cells)} |")
        value[way] = {"mean": asdict(found), "runs": [asdict(one) for one in runs], "apart": apart}
    (folder / "report.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _share(found: float, real: float) -> float:
    if found == real:
        return 0.0
    return abs(found / real - 1.0) if real else math.inf


def _words(name: str, apart: float) -> str:
    return f"{100.0 * apart:.1f} points" if name == "attainment" else f"{apart:.1%}"


if __name__ == "__main__":
    main()
