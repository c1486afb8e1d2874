"""How long does simulating a request take, by the number of replicas?

    python benchmarks/simulator.py [--per-replica 100] [--sizes 10 100]

Every replica gets the same number of requests with the lengths of azure_conv_2023, at the same rate
for each, so that only the size of the cluster grows. Each size runs with training and without, with
costs given and learned. What a million requests over 100 replicas would take is reckoned from the
measured time per request at 100. ``--calls`` counts calls of functions instead, which do not depend
on the machine: is there more to do for a request, or does the same take longer? Needs no model.
"""

import argparse
import cProfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pstats import Stats
from random import Random

from collm.sim.config import SimConfig
from collm.sim.policies import find_policy
from collm.sim.profile import load_profile
from collm.sim.requests import SimRequest, sim_requests
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


@dataclass(frozen=True, slots=True)
class Run:
    """A run that can begin."""

    simulation: Simulation
    requests: list[SimRequest]
    end_s: float

    def measure(self) -> float:
        """Run, and return processor seconds per request."""
        started_s = time.process_time()
        self._run()
        return (time.process_time() - started_s) / len(self.requests)

    def count_calls(self) -> float:
        """Run, and return calls per request."""
        profile = cProfile.Profile()
        profile.runcall(self._run)
        calls: int = Stats(profile).total_calls
        return calls / len(self.requests)

    def met(self) -> str:
        """Return the run's attainment in words."""
        num_met = sum(one.num_met for one in self.simulation.tallies.values())
        return f"{num_met / len(self.requests):.1%} met"

    def _run(self) -> None:
        self.simulation.run(self.requests, self.end_s)


def prepare(way: Way, num_replicas: int, arguments: argparse.Namespace) -> Run:
    """Return a run of so many replicas."""
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
    requests = list(sim_requests(trace, config.mix, config.seed))
    simulation = Simulation(profile, find_policy(way.policy), config)
    return Run(simulation, requests, trace[-1].arrived_at_s)


def show_calls(way: Way, arguments: argparse.Namespace) -> None:
    """Count the calls at every size, and print a row."""
    counts = [prepare(way, size, arguments).count_calls() for size in arguments.sizes]
    cells = [f"{count:,.0f} calls" for count in counts]
    print(f"| {way.policy} | {way.costs} | {' | '.join(cells)} |", flush=True)


def show_times(way: Way, arguments: argparse.Namespace) -> None:
    """Measure every size, and print a row."""
    cells = []
    for size in arguments.sizes:
        run = prepare(way, size, arguments)
        seconds = run.measure()
        cells.append(f"{1e3 * seconds:.3f} ms ({run.met()})")
        if size == 100:
            minutes = MILLION * seconds / 60.0
    print(f"| {way.policy} | {way.costs} | {' | '.join(cells)} |", flush=True)
    if 100 in arguments.sizes:
        word = "within" if minutes <= BAR_MIN else "beyond"
        print(f"  a million over 100: about {minutes:.1f} min, {word} {BAR_MIN:g}")


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
    parser.add_argument("--calls", action="store_true", help="count calls, and take no times")
    arguments = parser.parse_args(argv)
    ways = [
        replace(way, fast_forward=not arguments.no_fast_forward)
        for way in WAYS
        if not arguments.ways or f"{way.policy}/{way.costs}" in arguments.ways
    ]
    print(f"| policy | costs | {' | '.join(f'{n} replicas' for n in arguments.sizes)} |")
    print("|---|---|" + "---|" * len(arguments.sizes))
    for way in ways:
        (show_calls if arguments.calls else show_times)(way, arguments)


if __name__ == "__main__":
    main()
