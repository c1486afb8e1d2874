"""How long does simulating a request take, by the number of replicas?

    python benchmarks/simulator.py [--per-replica 100] [--sizes 10 100]

Every replica gets the same number of requests with the lengths of azure_conv_2023, at the same rate
for each, so that only the size of the cluster grows. Each size runs with training and without, with
costs given and learned. What a million requests over 100 replicas would take is reckoned from the
measured time per request at 100. Needs no model.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from collm.sim.config import SimConfig
from collm.sim.policies import find_policy
from collm.sim.profile import load_profile
from collm.sim.requests import sim_requests
from collm.sim.simulation import Simulation
from collm.workload.traces import Trace, load_trace

TRACE = "azure_conv_2023"
SIZES = (10, 100, 1_000)
MILLION = 1_000_000
BAR_MIN = 15.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run."""

    policy: str
    costs: str
    fast_forward: bool = True


WAYS = (
    Way("serve-only", "given"),
    Way("serve-only", "learned"),
    Way("collm", "given"),
    Way("collm", "learned"),
)


def rows(trace: Trace, num_requests: int, per_s: float, seed: int) -> Iterator:
    """Yield drawn lengths of the trace at Poisson times: any number of requests at any rate."""
    random, at_s = Random(seed), 0.0
    for _ in range(num_requests):
        at_s += random.expovariate(per_s)
        yield replace(random.choice(trace), arrived_at_s=at_s)


def measure(way: Way, num_replicas: int, arguments: argparse.Namespace) -> tuple[float, str]:
    """Return seconds per request, and the run's attainment in words."""
    profile = load_profile(arguments.profile)
    num_requests = num_replicas * arguments.per_replica
    trace = tuple(
        rows(load_trace(TRACE), num_requests, num_replicas * arguments.rate, arguments.seed)
    )
    config = SimConfig(
        num_replicas=num_replicas,
        seed=arguments.seed,
        costs="given" if way.costs == "given" else "learned",
        fast_forward=way.fast_forward,
    )
    simulation = Simulation(profile, find_policy(way.policy), config)
    requests = list(sim_requests(trace, config.mix, config.seed))
    started_s = time.process_time()
    simulation.run(requests, trace[-1].arrived_at_s)
    seconds = time.process_time() - started_s
    num_met = sum(one.num_met for one in simulation.tallies.values())
    return seconds / num_requests, f"{num_met / num_requests:.1%} met"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--per-replica", type=int, default=100, help="requests of each replica")
    parser.add_argument("--rate", type=float, default=1.0, help="requests/s of each replica")
    parser.add_argument("--profile", default="llama-3.1-8b-a30")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-fast-forward", action="store_true")
    parser.add_argument("--ways", nargs="+", help="POLICY/COSTS; all four by default")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    ways = [
        replace(way, fast_forward=not arguments.no_fast_forward)
        for way in WAYS
        if not arguments.ways or f"{way.policy}/{way.costs}" in arguments.ways
    ]
    print(f"| policy | costs | {' | '.join(f'{n} replicas' for n in arguments.sizes)} |")
    print("|---|---|" + "---|" * len(arguments.sizes))
    for way in ways:
        found = [measure(way, size, arguments) for size in arguments.sizes]
        cells = [f"{1e3 * seconds:.3f} ms ({met})" for seconds, met in found]
        print(f"| {way.policy} | {way.costs} | {' | '.join(cells)} |", flush=True)
        for size, (seconds, _) in zip(arguments.sizes, found, strict=True):
            if size == 100:
                minutes = MILLION * seconds / 60.0
                word = "within" if minutes <= BAR_MIN else "beyond"
                print(f"  a million over 100: about {minutes:.1f} min, {word} {BAR_MIN:g}")


if __name__ == "__main__":
    main()
