"""What does averaging A and B get wrong, and what does cutting the exact sum to a rank lose?

    python benchmarks/aggregation.py [--rounds 6] [--steps 15]

Members fit low-rank changes of one linear layer with Adam: half of the change is common to all
members, half their own, as with domains of one language. Needs no model; takes seconds.
"""

import argparse
import math

import torch
from torch import Tensor

from collm.federated.factors import Factors
from collm.federated.strategies import Aggregate, FedAvg, MemberUpdate, Strategy, Svd

NUM_IN, NUM_OUT = 192, 160
RANK = 16
TRUE_RANK = 8
LEARNING_RATE = 1e-2
MODULE = "layer"


def random_factors(rank: int, generator: torch.Generator) -> Factors:
    """Return factors without any structure."""
    a = torch.randn(rank, NUM_IN, generator=generator)
    return {MODULE: (a, torch.randn(NUM_OUT, rank, generator=generator))}


def fresh_factors(seed: int) -> Factors:
    """Return what a new adapter starts from: A random, B zero."""
    bound = 1.0 / math.sqrt(NUM_IN)
    generator = torch.Generator().manual_seed(seed)
    a = torch.empty(RANK, NUM_IN).uniform_(-bound, bound, generator=generator)
    return {MODULE: (a, torch.zeros(NUM_OUT, RANK))}


def targets(num_members: int, generator: torch.Generator) -> list[Tensor]:
    """Return the change [out, in] that each member's data asks for."""

    def change() -> Tensor:
        a, b = random_factors(TRUE_RANK, generator)[MODULE]
        return b @ a / math.sqrt(NUM_IN * TRUE_RANK)

    common = change()
    return [common + change() for _ in range(num_members)]


def trained(start: Factors, target: Tensor, num_steps: int, generator: torch.Generator) -> Factors:
    """Return ``start`` after one round of steps towards ``target`` on random inputs."""
    a, b = (factor.clone().requires_grad_() for factor in start[MODULE])
    optimizer = torch.optim.Adam([a, b], lr=LEARNING_RATE)
    for _ in range(num_steps):
        x = torch.randn(64, NUM_IN, generator=generator)
        loss = (x @ (b @ a - target).T).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {MODULE: (a.detach(), b.detach())}


def combined(strategy: Strategy, updates: list[Factors]) -> Aggregate:
    """Return the aggregate of equally weighted updates."""
    members = [
        MemberUpdate(member=f"m{index}", factors=factors, weight=1.0)
        for index, factors in enumerate(updates)
    ]
    return strategy.aggregate(None, members)


def missing(factors: Factors, wanted: list[Tensor]) -> float:
    """Return ‖mean target − ΔW‖ / ‖mean target‖."""
    mean = torch.stack(wanted).mean(0)
    a, b = factors[MODULE]
    return float((mean - b @ a).norm() / mean.norm())


def print_row(case: str, aggregate: Aggregate, wanted: list[Tensor] | None = None) -> None:
    """Print one line of the table."""
    bias = aggregate.bias_share or 0.0
    far = f"{missing(aggregate.factors, wanted):.1%}" if wanted else "–"
    print(f"| {case} | {bias:.1%} | {aggregate.energy_share:.1%} | {far} |")


def print_rounds(
    name: str, strategy: Strategy, num_members: int, num_rounds: int, num_steps: int
) -> None:
    """Train and combine round after round, and print each."""
    generator = torch.Generator().manual_seed(1)
    wanted = targets(num_members, generator)
    start = fresh_factors(0)
    for number in range(1, num_rounds + 1):
        updates = [trained(start, target, num_steps, generator) for target in wanted]
        aggregate = combined(strategy, updates)
        print_row(f"{num_members} members, {name}, round {number}", aggregate, wanted)
        start = aggregate.factors


def print_single_rounds(num_steps: int) -> None:
    """Print updates without structure, and updates that do not share a start."""
    for num_members in (2, 8):
        generator = torch.Generator().manual_seed(0)
        updates = [random_factors(RANK, generator) for _ in range(num_members)]
        print_row(f"{num_members} members, random factors", combined(Svd(RANK), updates))
    generator = torch.Generator().manual_seed(1)
    wanted = targets(2, generator)
    updates = [
        trained(fresh_factors(seed), target, num_steps, generator)
        for seed, target in enumerate(wanted)
    ]
    print_row("2 members, svd, each from an A of its own", combined(Svd(RANK), updates), wanted)


def print_floor(num_members: int) -> None:
    """Print what no adapter of the rank can do better."""
    wanted = targets(num_members, torch.Generator().manual_seed(1))
    s = torch.linalg.svdvals(torch.stack(wanted).mean(0))
    print(f"| {num_members} members, best of the rank | – | – | {s[RANK:].norm() / s.norm():.1%} |")


def main() -> None:
    """Print one row per case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=15, help="Adam steps of a member in a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| case | bias of plain averaging | energy kept at rank 16 | error left |")
    print("|---|---|---|---|")
    print_single_rounds(options.steps)
    for num_members in (2, 8):
        for name, strategy in (("svd", Svd(RANK)), ("fedavg", FedAvg(RANK))):
            print_rounds(name, strategy, num_members, options.rounds, options.steps)
        print_floor(num_members)


if __name__ == "__main__":
    main()
