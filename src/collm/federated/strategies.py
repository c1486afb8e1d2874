"""How members' updates become one adapter: pure functions on factors.

An update is a whole adapter ΔW = B A, not a difference; equal updates give themselves. A stale one,
trained from an older base, enters as what it learned since, upon the current base.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from collm.errors import RoundError
from collm.federated.aggregate_plan import StrategyName
from collm.federated.factors import Factors
from collm.lora.algebra import truncated_product
from collm.lora.state import initialize_a_


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberUpdate:
    """One member's contribution."""

    member: str
    factors: Factors
    weight: float
    """Above 0; only the ratios between members' weights matter."""
    staleness: int = 0
    """Promotions since the base that it was trained from; 0 is the current base."""
    trained_from: Factors | None = None
    """The older base of a stale update; ``None`` for a fresh adapter, ΔW = 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """The combined adapter, and what its making lost."""

    factors: Factors
    """float32, of the strategy's rank."""
    weights: Mapping[str, float]
    """By member; they sum to one."""
    bias_share: float | None
    """‖Σ w BA − B̄Ā‖ / ‖Σ w BA‖ of the updates that are not stale: what averaging A and B would get
    wrong, ranks padded by zeros. ``None`` if all are stale."""
    energy_share: float
    """Share of ‖Σ w BA‖² that truncation kept; 1 where nothing is truncated."""


class Strategy(Protocol):
    """A way to combine updates."""

    def refusal(self, base: Factors | None, update: MemberUpdate) -> str | None:
        """Return why this strategy cannot use an update that is well formed, or ``None``."""
        ...

    def aggregate(self, base: Factors | None, updates: Sequence[MemberUpdate]) -> Aggregate:
        """Combine updates of equal modules; their order does not change a bit of the result.

        Args:
            base: The version that updates which are not stale were trained from; ``None`` for a
                fresh adapter.
            updates: At least one, no member twice.

        Raises:
            RoundError: An update is refused, or weights, members or modules are not as above.
        """
        ...


class Svd:
    """The exact weighted sum of ΔW, cut to the rank that keeps most of it; any ranks go in.

    Dimensions that the sum leaves unused start like a new adapter's, A random and B zero, so that
    they can learn.

    Args:
        rank: Of the result.
        rate: How far the result goes from the base towards the sum; above 1 beyond it.

    Source: FlexLoRA, arXiv 2402.11505; here without forming ΔW. The rate is the server's of FedOpt,
    arXiv 2003.00295, algorithm 1.
    """

    def __init__(self, rank: int, rate: float = 1.0) -> None:
        self._rank = rank
        self._rate = rate

    def refusal(self, base: Factors | None, update: MemberUpdate) -> str | None:
        """Return ``None``: every update can enter the sum."""
        return None

    def aggregate(self, base: Factors | None, updates: Sequence[MemberUpdate]) -> Aggregate:
        """See ``Strategy``."""
        parts = _weighted(self, base, updates)
        generator = torch.Generator().manual_seed(0)
        factors, total, kept = {}, 0.0, 0.0
        for module in sorted(parts[0][1].factors):
            a, b = _stacked(_terms(base, parts, module, self._rate))
            new_a, new_b = truncated_product(a, b, self._rank)
            total += _squared_norm(a, b)
            kept += _squared_norm(new_a, new_b)
            unused = ~new_b.any(dim=0)
            new_a[unused] = initialize_a_(new_a[unused], generator)
            factors[module] = (new_a.float(), new_b.float())
        energy_share = min(1.0, kept / total) if total else 1.0
        return _aggregate(parts, factors, energy_share)


class FedAvg:
    """The weighted means of A and of B, whose product is not the mean of the products.

    Args:
        rank: Of the result.
        rate: How far both factors go from the base's towards the means; from a fresh adapter, of
            which B = 0 is known and A is not, only B does.

    Source: FedIT, arXiv 2305.05644; FedAvg, arXiv 1602.05629.
    """

    def __init__(self, rank: int, rate: float = 1.0) -> None:
        self._rank = rank
        self._rate = rate

    def refusal(self, base: Factors | None, update: MemberUpdate) -> str | None:
        """Return why the update's factors cannot be averaged with others, or ``None``."""
        needed = [update.factors]
        if update.staleness:
            if base is None or update.trained_from is None:
                return "stale, and a fresh adapter's factors are not known to fedavg"
            needed += [base, update.trained_from]
        for factors in needed:
            for module in update.factors:
                rank = factors[module][0].shape[0] if module in factors else 0
                if rank != self._rank:
                    return f"{module} has rank {rank}; fedavg needs {self._rank} throughout"
        return None

    def aggregate(self, base: Factors | None, updates: Sequence[MemberUpdate]) -> Aggregate:
        """See ``Strategy``."""
        parts = _weighted(self, base, updates)
        factors = {}
        for module in sorted(parts[0][1].factors):
            a, b = _mean([(w, *_upon(base, update, module)) for w, update in parts])
            if base is None:
                b *= self._rate
            else:
                old_a, old_b = base[module]
                a, b = old_a.double().lerp(a, self._rate), old_b.double().lerp(b, self._rate)
            factors[module] = (a.float(), b.float())
        return _aggregate(parts, factors, 1.0)


STRATEGIES: Mapping[StrategyName, Callable[[int, float], Strategy]] = {
    StrategyName.SVD: Svd,
    StrategyName.FEDAVG: FedAvg,
}
"""By name; each takes the rank of its results, and how far they go from the base."""

_Parts = Sequence[tuple[float, MemberUpdate]]
"""Updates with their normalized weights, in the order of members."""
_Term = tuple[float, Tensor, Tensor]
"""A factor c, A and B: one summand c B A."""


def _weighted(strategy: Strategy, base: Factors | None, updates: Sequence[MemberUpdate]) -> _Parts:
    ordered = sorted(updates, key=lambda update: update.member)
    if not ordered:
        raise RoundError("no updates to aggregate")
    modules = ordered[0].factors.keys()
    seen = set()
    for update in ordered:
        reason = strategy.refusal(base, update)
        if update.member in seen:
            reason = "more than one update"
        elif not (math.isfinite(update.weight) and update.weight > 0.0):
            reason = f"weight is {update.weight}; allowed is above 0"
        elif update.factors.keys() != modules:
            reason = f"other modules than {ordered[0].member}"
        if reason:
            raise RoundError(f"{update.member}: {reason}", member=update.member)
        seen.add(update.member)
    total = math.fsum(update.weight for update in ordered)
    return [(update.weight / total, update) for update in ordered]


def _terms(base: Factors | None, parts: _Parts, module: str, rate: float) -> list[_Term]:
    """Return the summands of one module's base + rate (Σ w ΔW − base).

    Stale updates are carried over to ``base``.
    """
    terms = [(rate * weight, *update.factors[module]) for weight, update in parts]
    for weight, update in parts:
        if update.staleness and update.trained_from and module in update.trained_from:
            terms.append((-rate * weight, *update.trained_from[module]))
    stale = math.fsum(weight for weight, update in parts if update.staleness)
    share = 1.0 - rate + rate * stale
    if share and base and module in base:
        terms.append((share, *base[module]))
    return terms


def _upon(base: Factors | None, update: MemberUpdate, module: str) -> tuple[Tensor, Tensor]:
    """Return an update's factors in float64, a stale one's moved from its base to ``base``."""
    a, b = (factor.double() for factor in update.factors[module])
    if not update.staleness:
        return a, b
    assert base is not None
    assert update.trained_from is not None
    (new_a, new_b), (old_a, old_b) = base[module], update.trained_from[module]
    return a - old_a.double() + new_a.double(), b - old_b.double() + new_b.double()


def _stacked(terms: Iterable[_Term]) -> tuple[Tensor, Tensor]:
    """Return float64 A [inner, in] and B [out, inner] with B A the sum of all terms."""
    terms = list(terms)
    a = torch.cat([a.double() for _, a, _ in terms])
    return a, torch.cat([weight * b.double() for weight, _, b in terms], 1)


def _mean(terms: Sequence[_Term]) -> tuple[Tensor, Tensor]:
    """Return the weighted means of A and B in float64; smaller ranks are padded by zeros."""
    rank = max(a.shape[0] for _, a, _ in terms)
    _, first_a, first_b = terms[0]
    mean_a = first_a.new_zeros(rank, first_a.shape[1], dtype=torch.float64)
    mean_b = first_b.new_zeros(first_b.shape[0], rank, dtype=torch.float64)
    for weight, a, b in terms:
        mean_a[: a.shape[0]] += weight * a.double()
        mean_b[:, : b.shape[1]] += weight * b.double()
    return mean_a, mean_b


def _aggregate(parts: _Parts, factors: Factors, energy_share: float) -> Aggregate:
    return Aggregate(
        factors=factors,
        weights={update.member: weight for weight, update in parts},
        bias_share=_bias_share(parts),
        energy_share=energy_share,
    )


def _bias_share(parts: _Parts) -> float | None:
    fresh = [(weight, update.factors) for weight, update in parts if not update.staleness]
    if not fresh:
        return None
    share = math.fsum(weight for weight, _ in fresh)
    total, missed = 0.0, 0.0
    for module in sorted(fresh[0][1]):
        terms = [(weight / share, *factors[module]) for weight, factors in fresh]
        total += _squared_norm(*_stacked(terms))
        missed += _squared_norm(*_stacked([*terms, (-1.0, *_mean(terms))]))
    return math.sqrt(missed / total) if total else 0.0


def _squared_norm(a: Tensor, b: Tensor) -> float:
    """Return ‖b a‖² from the factors' Gram matrices [inner, inner]."""
    return max(0.0, float(((b.T @ b) * (a @ a.T)).sum()))
