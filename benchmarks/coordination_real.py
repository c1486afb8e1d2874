"""Does coordinating two real replicas pay, and does it harm users? One trace, all arms alike.

    python benchmarks/coordination_real.py --json coordination-real.json

Two replicas of the default model learn `clinc150`, each by itself, with nothing to serve. Every arm
then starts from a copy of what that left on disk, so from the same adapters, and replays the same
requests over HTTP, half of them questions of the set's test split:

- `collm`: learns on, behind the front's router, with its allocator at work;
- `no allocator`: the same with the router alone;
- `collm@fixed`: learns on, requests going to the replicas in turn, past the front;
- `serve-only`: the adapters of the start, nothing learned, behind the router;
- `oracle`: serves from the start, and without learning, what the best of the others ended with.

Shown are F, Q, both goodputs and regret, with what was trained and how the last allocation shared
out the traffic. The quality of a version is what its replica measured of it. The file keeps every
request's record. Needs an idle machine for six minutes; simulated clusters are in coordination.py.
"""

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from common import Report, make_parser, progress

# isort: split
from collm.metrics.attainment import measure_attainment
from collm.metrics.goodput import (
    paper_goodput_per_s,
    regret,
    task_goodput_per_s,
    throughput_per_s,
)
from collm.pacing.config import Objectives
from collm.workload.config import WorkloadConfig
from collm.workload.requests import WorkloadRequest, build_requests, filler_text
from collm.workload.samples import load_samples
from collm.workload.score import exact_match_score
from collm.workload.traces import load_trace
from coordination_real_runs import Arm, Run, Setting, run_arm, warm_up
from slo_plan import TRACE, cut_block, scale_lengths

ARMS = (
    Arm(name="collm", policy="adaptive"),
    Arm(name="no allocator"),
    Arm(name="collm@fixed", is_routed=False),
    Arm(name="serve-only", learns=False),
)
ORACLE = Arm(name="oracle", learns=False)
_MAX_OUTPUT_TOKENS = 64


def main(argv: Sequence[str] | None = None) -> None:
    """Warm up, replay under every arm, compare."""
    parser = make_parser(__doc__ or "", rounds=1, rounds_are="repetitions of all arms")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rate", type=float, default=1.2, help="requests/s over both replicas")
    parser.add_argument("--seconds", type=float, default=45.0, help="length of the trace")
    parser.add_argument("--warm-s", type=float, default=30.0, help="of learning before all arms")
    parser.add_argument("--period-s", type=float, default=10.0, help="between two allocations")
    parser.add_argument("--arms", nargs="+", choices=[one.name for one in ARMS])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.seconds, arguments.warm_s, arguments.period_s = 10.0, 5.0, 3.0
    report = Report("Two real replicas, coordinated and not", arguments)
    for number in range(arguments.rounds):
        runs = repetition(arguments, number)
        title = f"{arguments.rate:g} requests/s for {arguments.seconds:g} s"
        report.table(f"{title}, seed {arguments.seed + number}", rows(runs, arguments.seconds))
        report.raw[f"seed {arguments.seed + number}"] = {
            one.arm.name: {
                "qualities": one.qualities,
                "records": [asdict(record) for record in one.records],
                "allocation": one.allocation,
            }
            for one in runs
        }
    report.finish()


def repetition(arguments: argparse.Namespace, number: int) -> list[Run]:
    """Return the run of every arm on the requests of one seed, the oracle's last."""
    requests = requests_of(arguments, arguments.seed + number)
    setting = Setting(model=arguments.model, dtype=arguments.dtype, period_s=arguments.period_s)
    chosen = [one for one in ARMS if not arguments.arms or one.name in arguments.arms]
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="collm-coordination-") as name:
        folder = Path(name)
        progress("warm-up")
        known = warm_up(setting, folder / "warm", arguments.warm_s)
        for arm in chosen:
            progress(arm.name)
            shutil.copytree(folder / "warm", folder / arm.name)
            runs.append(run_arm(setting, arm, folder / arm.name, requests, known))
        best = max(runs, key=lambda one: one.final_quality)
        progress(f"oracle, with what {best.arm.name} ended with")
        place = folder / best.arm.name
        runs.append(run_arm(setting, ORACLE, place, requests, best.qualities))
    return runs


def requests_of(arguments: argparse.Namespace, seed: int) -> tuple[WorkloadRequest, ...]:
    """Return a part of the trace, stretched to the wanted rate, half of it questions."""
    count = round(arguments.rate * arguments.seconds)
    lengths = scale_lengths(load_trace(TRACE), _MAX_OUTPUT_TOKENS)
    block = cut_block(lengths, 1 + 997 * seed, count, arguments.seconds)
    filler = filler_text(load_samples("medquad", "test"))
    questions = load_samples("clinc150", "test")
    return build_requests(block, questions, filler, WorkloadConfig(), seed)


def rows(runs: Sequence[Run], duration_s: float) -> list[dict[str, str]]:
    """Return each arm's figures; the oracle's run is the last."""
    objectives = Objectives()
    goodputs = [
        paper_goodput_per_s(
            one.records,
            objectives,
            duration_s,
            {version: 1.0 / quality for version, quality in one.qualities.items()},
        )
        for one in runs
    ]
    return [
        _row(one, goodput, goodputs[-1], duration_s)
        for one, goodput in zip(runs, goodputs, strict=True)
    ]


def _row(one: Run, goodput: float, best: float, duration_s: float) -> dict[str, str]:
    objectives = Objectives()
    kept = throughput_per_s(one.records, objectives, duration_s)
    share = measure_attainment(one.records, objectives).share
    task = task_goodput_per_s(one.records, objectives, duration_s, exact_match_score)
    return {
        "arm": one.arm.name,
        "met": "–" if share is None else f"{share:.1%}",
        "F/s": f"{kept:.3f}",
        "Q": f"{goodput / kept:.3f}" if kept else "–",
        "F·Q": f"{goodput:.3f}",
        "task/s": f"{task:.3f}",
        "regret": f"{regret(goodput, best):.1%}" if best > 0.0 else "–",
        "training tokens": str(one.trained_tokens),
        "requests here": " ".join(map(str, one.num_ended)),
        "last traffic": " ".join(f"{share:.0%}" for share in one.traffic) or "–",
    }


if __name__ == "__main__":
    main()
