"""The best of all allocations on a grid: the reference that the allocator is held to.

The program is written down a second time here, from its formula, on numpy arrays whose first axis
is the combinations that are tried.
"""

from itertools import product

import numpy as np
from numpy.typing import NDArray

from collm.cluster.planning.problem import AllocationProblem

Array = NDArray[np.float64]

_NUM_CREDITS = 5
_LEAST_PART = 0.1
_FULL = 0.5
"""No credit where more requests than this share would miss."""


def best_on_grid(problem: AllocationProblem) -> float:
    """Return the highest objective over shares, credits and divisions of a grid."""
    replicas, adapters = list(problem.replicas), list(problem.adapters)
    traffic = _traffic(len(replicas), len(adapters))
    credit = _credits(problem)
    division = _divisions(problem)
    best = -np.inf
    for parts in division:
        values = _objective(problem, traffic[:, None], credit[None, :], parts)
        best = max(best, float(values.max()))
    return best


def _traffic(num_replicas: int, num_adapters: int) -> Array:
    """Return shares [combinations, replicas, adapters]."""
    num_steps = {(2, 2): 8, (3, 2): 6}.get((num_replicas, num_adapters), 12)
    splits = [
        split
        for split in product(range(num_steps + 1), repeat=num_replicas)
        if sum(split) == num_steps
    ]
    rows = [np.array(chosen).T / num_steps for chosen in product(splits, repeat=num_adapters)]
    return np.array(rows)


def _credits(problem: AllocationProblem) -> Array:
    """Return credits [combinations, replicas]."""
    levels = [
        np.linspace(0.0, terms.max_credit_share, _NUM_CREDITS if terms.max_credit_share else 1)
        for terms in problem.replicas.values()
    ]
    return np.array(list(product(*levels)))


def _divisions(problem: AllocationProblem) -> list[dict[tuple[str, str], float]]:
    """Return how each replica divides its training time, all combinations."""
    choices = []
    for one in problem.replicas:
        trained = [a for a in problem.adapters if problem.pairs[one, a].training is not None]
        if len(trained) < 2:
            choices.append([{(one, a): 1.0 for a in trained}])
        else:
            least = _LEAST_PART / 2
            parts = np.linspace(least, 1.0 - least, 5)
            choices.append([{(one, trained[0]): p, (one, trained[1]): 1.0 - p} for p in parts])
    return [{k: v for part in chosen for k, v in part.items()} for chosen in product(*choices)]


def _objective(
    problem: AllocationProblem, traffic: Array, credit: Array, parts: dict[tuple[str, str], float]
) -> Array:
    """Return the objective [traffic, credits]; minus infinity where credit goes to the full."""
    period_s, adapters = problem.round_s, list(problem.adapters)
    total: Array = np.zeros((traffic.shape[0], credit.shape[1]))
    tokens = {a: np.zeros_like(total) for a in adapters}
    reach = {a: np.zeros_like(total) for a in adapters}
    for i, (one, terms) in enumerate(problem.replicas.items()):
        arrivals = np.array([problem.adapters[a].arrivals_per_s for a in adapters])
        load = traffic[:, :, i] @ arrivals
        u = credit[:, :, i]
        chance = terms.attainment.probability(load, u)
        free = terms.attainment.free_share(load)
        time = free + u * (1.0 - free)
        for k, a in enumerate(adapters):
            pair, share = problem.pairs[one, a], traffic[:, :, i, k]
            total = total + period_s * share * arrivals[k] * chance * pair.quality
            reach[a] = reach[a] + share * chance
            if pair.training is not None:
                learns = pair.training
                rate = max(
                    learns.efficiency.e(b) * learns.throughput.tokens_per_s(b)
                    for b in problem.adapters[a].batch_choices
                )
                tokens[a] = tokens[a] + learns.discount * rate * parts[one, a] * time * period_s
        total = total - terms.debt * period_s * load * (1.0 - chance)
        total = np.where((u > 0.0) & (chance < _FULL), -np.inf, total)
    for a in adapters:
        asked = max(problem.adapters[a].arrivals_per_s, problem.adapters[a].min_arrivals_per_s)
        gain = problem.adapters[a].curve.gain(tokens[a])
        total = total + problem.horizon_rounds * period_s * asked * reach[a] * gain
    return total
