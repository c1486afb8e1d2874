"""How long does an allocation take, by the number of replicas, and what does it gain?

    python benchmarks/allocator.py [--repeats 3]

Replicas differ in speed and debt; each serves four adapters and trains one or two of them; the load
is half of what meets the objectives. Chances and free time are those of `AttainmentModel`, by step
costs as on two CPU cores; `--made-up` takes a plain formula in its place, to see what the model
costs. Needs no language model: only the allocator runs, on one core.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from collm.cluster.planning.allocation import Allocation
from collm.cluster.planning.allocator import Allocator
from collm.cluster.planning.attainment import AttainmentModel, RequestMix
from collm.cluster.planning.problem import AllocationProblem, Attainment, PairTerms
from collm.types import StepCoefficients

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from factories.allocation_problems import (  # noqa: E402
    Knee,
    NoiseScale,
    PowerCurve,
    Rate,
    adapter,
    problem,
    replica,
    training,
)

SIZES = (2, 10, 100, 1_000)
NUM_ADAPTERS = 20
NUM_SERVED = 4
LOAD = 0.5
ENOUGH = 0.95
"""Of the requests within their objectives: what a replica's capacity is said by."""


def modelled(rng: Random) -> tuple[Attainment, float]:
    """Return a replica of some speed, and its capacity in requests per second."""
    slowness = rng.uniform(0.4, 1.2)
    model = AttainmentModel(
        cost=StepCoefficients(
            constant_s=0.020 * slowness,
            decode_s=0.0015 * slowness,
            prefill_s=0.0009 * slowness,
            context_s=4e-6 * slowness,
            adapter_s=0.002,
        ),
        ttft_s=0.8,
        tpot_s=0.1,
        mix=RequestMix(prefill_tokens=100.0, context_tokens=160.0, output_tokens=64.0),
    )
    low, high = 0.0, 20.0
    for _ in range(12):
        middle = (low + high) / 2.0
        is_met = model.probability(middle, 0.0) > ENOUGH
        low, high = (middle, high) if is_met else (low, middle)
    return model, low


def made_up(rng: Random) -> tuple[Attainment, float]:
    """Return a plain formula, and its capacity."""
    capacity = rng.uniform(2.0, 6.0)
    return Knee(capacity=capacity, steepness=8.0, busy=2.0 / capacity), capacity


def cluster_of(num_replicas: int, rng: Random, *, is_made_up: bool) -> AllocationProblem:
    """Return a problem of this size."""
    names = [f"replica-{number}" for number in range(num_replicas)]
    num_adapters = min(NUM_ADAPTERS, 2 * num_replicas)
    adapters = [f"adapter-{number}" for number in range(num_adapters)]
    found = {name: made_up(rng) if is_made_up else modelled(rng) for name in names}
    arrivals = [rng.expovariate(1.0) for _ in adapters]
    scale = LOAD * sum(capacity for _, capacity in found.values()) / sum(arrivals)
    pairs = {}
    for number, name in enumerate(names):
        served = [adapters[(number + k) % num_adapters] for k in range(NUM_SERVED)]
        trained = served[: rng.choice((1, 1, 2))]
        for one in dict.fromkeys(served):
            rate = Rate(rng.uniform(100.0, 1_000.0), rng.uniform(0.05, 0.5))
            learns = training(throughput=rate, efficiency=NoiseScale(10.0 ** rng.uniform(3, 5)))
            pairs[name, one] = PairTerms(
                quality=rng.uniform(0.8, 1.2), training=learns if one in trained else None
            )
    return problem(
        {
            name: replica(
                attainment=attainment,
                debt=rng.choice((0.0, 0.0, 1.0)),
            )
            for name, (attainment, _) in found.items()
        },
        {
            name: adapter(
                arrivals_per_s=scale * rate,
                curve=PowerCurve(scale=num_replicas * 10.0 ** rng.uniform(3.5, 5.0)),
            )
            for name, rate in zip(adapters, arrivals, strict=True)
        },
        pairs,
        horizon_rounds=30.0,
    )


def timed(case: AllocationProblem, repeats: int) -> tuple[Allocation, Sequence[float]]:
    """Return the allocation and the seconds that each repetition took."""
    seconds = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        allocation = Allocator().solve(case)
        seconds.append(time.perf_counter() - start_s)
    return allocation, sorted(seconds)


def main() -> None:
    """Print one row per number of replicas."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--made-up", action="store_true", help="plain formulas as chances")
    arguments = parser.parse_args()
    print("| replicas | median s | over proportional, no credit | idle replicas | mean credit |")
    print("|---|---|---|---|---|")
    for size in SIZES:
        case = cluster_of(size, Random(arguments.seed), is_made_up=arguments.made_up)
        allocation, seconds = timed(case, arguments.repeats)
        plain = allocation.alternatives[0].total
        num_idle = sum(one.arrivals_per_s < 1e-6 for one in allocation.expected.values())
        credit = sum(allocation.credit_share(name) for name in case.replicas) / size
        print(
            f"| {size} | {seconds[len(seconds) // 2]:.3f} "
            f"| {allocation.objective.total / plain - 1.0:+.1%} | {num_idle} | {credit:.3f} |"
        )


if __name__ == "__main__":
    main()
