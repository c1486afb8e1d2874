"""The slow loop's decision: the program that shares out traffic, credit and training time."""

from collections.abc import Callable, Sequence

from collm.cluster.planning.allocation import Allocation, Alternative, Expectation, Grant
from collm.cluster.planning.credits import divide_time, grant_credits, take_back_credits
from collm.cluster.planning.ledger import Change, Ledger, Place, Shares
from collm.cluster.planning.moves import empty_replicas, externality, move_traffic
from collm.cluster.planning.problem import AllocationProblem
from collm.cluster.planning.starts import (
    as_it_is,
    capacities,
    even,
    overflowing,
    proportional,
)

_MAX_ROUNDS_FINE = 6
_MAX_ROUNDS_COARSE = 2
_PASSES_FINE = 8
_PASSES_COARSE = 3
_ENOUGH = 1e-4
"""Share of the objective that another round of the search must gain to be followed by one more."""
MOVE_SHARE = 0.05
"""Of the objective, what other traffic must gain: requests under way end where they are, and for
much of a round a replica that was left to training trains no more than before."""
_MEMBER_SHARE = 0.05
"""A replica with less than this share of the largest member's tokens is not waited for."""
_NO_WORK_S = 1e-6
_LEAST_WORK = 0.3
"""Of the mean work of a request, what one more takes at least."""


class Allocator:
    """Solves problems; remembers none, so that equal problems have equal answers.

    Maximises, over traffic shares ``v``, credits ``u``, divisions of training time and tokens per
    optimizer step ``B``::

        Σ_ij v_ij λ_j T P_i Q_ij + Σ_j H T max(λ_j, λ_min) P̄_j ΔQ_j(N_j) - Σ_i Z_i misses_i
        N_j = Σ_i δ_ij e(B_ij) τ_i(B_ij) w_ij (f_i + u_i (1 - f_i)) T

    where ``w_ij`` divides replica i's training time among its adapters, and ``u_ij = w_ij u_i``.
    Tokens per step are exact by themselves; credit and time are given by marginal value with the
    traffic held, traffic is moved with those held, in turns, from several beginnings. Each change
    is kept only if the objective rises, so the answer is never worse than proportional traffic with
    no credit.

    Args:
        moves_traffic: Whether traffic is shared out at all; otherwise it stays as replicas bear
            it, to show what moving it is worth.
    """

    def __init__(self, *, moves_traffic: bool = True) -> None:
        self._moves_traffic = moves_traffic

    def solve(self, problem: AllocationProblem) -> Allocation:
        """Return the best allocation found; the work is bounded by the problem's size."""
        ledger = Ledger(problem)
        capacity = capacities(ledger)
        search = _Search(ledger, capacity)
        search.consider("proportional traffic, no credit", proportional(ledger, capacity), [])
        search.consider("even traffic, no credit", even(ledger), [])
        search.consider(
            "proportional traffic, training time by value",
            proportional(ledger, capacity),
            [search.train_by_value],
        )
        if self._moves_traffic:
            _consider_moves(search, ledger, capacity)
        held = as_it_is(ledger, problem.traffic)
        if held is not None:
            search.stay("traffic as it is", held, [search.train_by_value])
        return search.conclude()


def _consider_moves(search: "_Search", ledger: Ledger, capacity: Sequence[float]) -> None:
    if not ledger.is_coarse:  # else concentrating, which may leave all in place, has to do
        search.consider(
            "traffic moved from proportional",
            proportional(ledger, capacity),
            [search.train_by_value, search.alternate],
        )
    search.consider(
        "traffic concentrated",
        proportional(ledger, capacity),
        [search.concentrate, search.train_by_value, search.alternate],
    )
    if not ledger.is_coarse:
        search.consider(
            "traffic by quality",
            _by_quality(ledger),
            [search.train_by_value, search.alternate],
        )
        for where, shares in overflowing(ledger, capacity):
            search.consider(
                f"too much for all: the rest to {where}",
                shares,
                [search.train_by_value, search.alternate],
            )


class _Search:
    """One problem's search: remembers the best state and what each way to one was worth."""

    def __init__(self, ledger: Ledger, capacity: Sequence[float]) -> None:
        self._ledger = ledger
        self._capacity = capacity
        self._is_fine = not ledger.is_coarse
        self._alternatives: list[Alternative] = []
        self._best: tuple[Alternative, list[Change]] | None = None

    def consider(self, name: str, shares: Shares, steps: Sequence[Callable[[], None]]) -> None:
        """Go a way from these shares, and note where it led."""
        self._ledger.reset(shares)
        for step in steps:
            step()
        found = Alternative(name, self._ledger.total)
        self._alternatives.append(found)
        if self._best is None or found.total > self._best[0].total:
            self._best = (found, self._ledger.save())

    def stay(self, name: str, shares: Shares, steps: Sequence[Callable[[], None]]) -> None:
        """Go this way unless the best one is worth moving for; call it after all others."""
        assert self._best is not None
        best, first = self._best, self._alternatives[0].total
        self._best = None
        self.consider(name, shares, steps)
        total, most = self._alternatives[-1].total, best[0].total
        if total < first or total + MOVE_SHARE * abs(most) < most:
            self._best = best

    def train_by_value(self) -> None:
        """Credit and training time, by what they are worth; what was given before is taken back."""
        ledger = self._ledger
        saved, before = ledger.save(), ledger.total
        ledger.restore([Change(i, shares, 0.0, division) for i, shares, _, division in saved])
        divide_time(ledger, 4 if self._is_fine else 1)
        grant_credits(ledger)
        divide_time(ledger, 2 if self._is_fine else 1)
        if ledger.total < before:
            ledger.restore(saved)

    def concentrate(self) -> None:
        """Leave replicas without traffic, as many as pays."""
        divide_time(self._ledger, 1)
        empty_replicas(self._ledger, self._capacity)

    def alternate(self) -> None:
        """Move traffic and train by value, in turns, until neither gains."""
        ledger = self._ledger
        for _ in range(_MAX_ROUNDS_FINE if self._is_fine else _MAX_ROUNDS_COARSE):
            before = ledger.total
            passes = _PASSES_FINE if self._is_fine else _PASSES_COARSE
            move_traffic(ledger, passes, is_fine=self._is_fine)
            take_back_credits(ledger)
            if self._is_fine:
                empty_replicas(ledger, self._capacity)
            self.train_by_value()
            if ledger.total - before <= _ENOUGH * abs(ledger.total):
                return

    def conclude(self) -> Allocation:
        """Return the best state as names and numbers."""
        assert self._best is not None
        ledger = self._ledger
        ledger.restore(self._best[1])
        places = ledger.places
        return Allocation(
            traffic={
                adapter: {places[i].replica_id: places[i].shares[j] for i in ledger.servers[j]}
                for j, adapter in enumerate(ledger.adapters)
            },
            grants={place.replica_id: _grants(ledger, place) for place in places if place.trained},
            members=_members(ledger),
            prices={place.replica_id: _price(ledger, i) for i, place in enumerate(places)},
            expected={
                place.replica_id: Expectation(
                    arrivals_per_s=place.load, attainment=place.chance, free_share=place.free
                )
                for place in places
            },
            objective=ledger.objective(),
            alternatives=tuple(self._alternatives),
            chosen=self._best[0].name,
        )


def _by_quality(ledger: Ledger) -> Shares:
    """Return shares that give each adapter's traffic to who serves it best."""
    shares: list[dict[int, float]] = [dict.fromkeys(place.worth, 0.0) for place in ledger.places]
    for j, servers in enumerate(ledger.servers):
        if servers:
            best = max(servers, key=lambda i: (ledger.places[i].worth[j], -i))
            shares[best][j] = 1.0
    return shares


def _grants(ledger: Ledger, place: Place) -> dict[str, Grant]:
    return {
        ledger.adapters[j]: Grant(
            credit_share=place.credit * part,
            time_share=part,
            batch_tokens=batch,
            expected_tokens=rate * part * place.time,
        )
        for j, rate, batch, part in zip(
            place.trained, place.rates, place.batches, place.division, strict=True
        )
    }


def _members(ledger: Ledger) -> dict[str, tuple[str, ...]]:
    """Return who trains each adapter enough to be waited for, by id."""
    tokens: dict[str, dict[str, float]] = {}
    for place in ledger.places:
        for adapter, grant in _grants(ledger, place).items():
            tokens.setdefault(adapter, {})[place.replica_id] = grant.expected_tokens
    members = {}
    for adapter, found in tokens.items():
        least = _MEMBER_SHARE * max(found.values())
        members[adapter] = tuple(sorted(one for one, n in found.items() if n > 0.0 and n >= least))
    return members


def _price(ledger: Ledger, i: int) -> float:
    """Return what a second of work costs the rest: the externality of a request over its work."""
    place = ledger.places[i]
    if not place.is_known:
        return 0.0
    step = max(1e-2 * place.load, 1e-3)
    work_s = (place.free - place.attainment.free_share(place.load + step)) / step
    if place.load > 0.0:  # one that is full has hardly any free time left to lose
        work_s = max(work_s, _LEAST_WORK * (1.0 - place.free) / place.load)
    if work_s <= _NO_WORK_S:
        return 0.0
    return max(externality(ledger, i), 0.0) / (ledger.round_s * work_s)
