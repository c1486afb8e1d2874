"""What an allocation is chosen from: replicas, adapters, and what each pair of them can do."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from collm.errors import ConfigError


class Attainment(Protocol):
    """How a replica's service depends on what it is given."""

    def probability(self, arrivals_per_s: float, credit_share: float) -> float:
        """Return the chance that a request meets its objectives, falling in both arguments."""
        ...

    def free_share(self, arrivals_per_s: float) -> float:
        """Return the share of wall time that serving leaves over, in [0, 1]."""
        ...


class Curve(Protocol):
    """How much better an adapter gets by training."""

    def gain(self, more_tokens: float) -> float:
        """Return the quality gained by so many more effective tokens: 0 at 0, concave."""
        ...


class Efficiency(Protocol):
    """What a token is worth by the size of the optimizer step that it is part of."""

    def e(self, batch_tokens: float) -> float:
        """Return the progress of a token, relative to one at the reference batch size."""
        ...


class Throughput(Protocol):
    """How fast a replica trains an adapter."""

    def tokens_per_s(self, batch_tokens: float) -> float:
        """Return training tokens per second of training time, at this many per step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTerms:
    """What is known of a replica."""

    attainment: Attainment | None = None
    """``None`` when nothing is known yet: it keeps its proportional part of the traffic, gets no
    credit, and its free time is not counted on."""
    debt: float = 0.0
    """Quality that each expected miss costs, for the misses of the past (``Z_i``)."""
    max_credit_share: float = 0.0
    """Most of its wall time that credit may take, over all adapters (``u_max``)."""

    def __post_init__(self) -> None:
        _check("debt", self.debt, self.debt >= 0.0, "0 or more")
        is_share = 0.0 <= self.max_credit_share < 1.0
        _check("max_credit_share", self.max_credit_share, is_share, "from 0 to below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTerms:
    """What is known of an adapter; the base model may be one that nobody trains."""

    arrivals_per_s: float
    """Requests per second that the next round is forecast to bring."""
    arrivals_std_per_s: float = 0.0
    """Standard deviation of that, as the forecast judges itself; shown, not planned with."""
    min_arrivals_per_s: float = 0.0
    """Requests per second that learning counts on at least, so that it is worth something when
    nothing arrives (``λ_min``)."""
    curve: Curve | None = None
    """``None`` while nothing is known: no training is bought for it."""
    batch_choices: tuple[int, ...] = ()
    """Tokens per optimizer step to choose from."""

    def __post_init__(self) -> None:
        for name in ("arrivals_per_s", "min_arrivals_per_s"):
            value = getattr(self, name)
            _check(name, value, value >= 0.0, "0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a replica trains an adapter."""

    efficiency: Efficiency
    throughput: Throughput
    discount: float = 1.0
    """What its tokens are worth to the adapter that all learn together (``δ_ij``), up to 1."""

    def __post_init__(self) -> None:
        _check("discount", self.discount, 0.0 <= self.discount <= 1.0, "from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTerms:
    """What a replica can do for an adapter."""

    quality: float | None = None
    """Quality of what it serves under the adapter's name (``Q_ij``); ``None`` if it does not."""
    training: Training | None = None
    """``None`` if it has no job for the adapter, or one that rests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationProblem:
    """Everything that an allocation depends on; equal problems have equal allocations."""

    replicas: Mapping[str, ReplicaTerms]
    adapters: Mapping[str, AdapterTerms]
    pairs: Mapping[tuple[str, str], PairTerms] = field(default_factory=dict)
    """By replica and adapter; pairs that are missing can do nothing."""
    round_s: float
    """Length of a round (``T``)."""
    horizon_rounds: float
    """Rounds for which what is learned now pays (``H``)."""
    traffic: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By adapter, the shares in force; none before the first allocation. Other ones must be worth
    the time that requests under way need to end where they are."""
    miss_price: float = 0.0
    """Quality that each expected miss costs beside its own, whatever is owed."""

    def __post_init__(self) -> None:
        for name in ("round_s", "horizon_rounds"):
            _check(name, getattr(self, name), getattr(self, name) > 0.0, "above 0")
        _check("miss_price", self.miss_price, self.miss_price >= 0.0, "0 or more")
        for (replica, adapter), pair in self.pairs.items():
            if replica not in self.replicas or adapter not in self.adapters:
                raise ConfigError(f"pairs: no replica {replica!r} with an adapter {adapter!r}")
            if pair.training is not None and not self.adapters[adapter].batch_choices:
                raise ConfigError(f"adapters: {adapter!r} is trained, but has no batch_choices")


def _check(name: str, value: float, is_allowed: bool, allowed: str) -> None:
    if not (math.isfinite(value) and is_allowed):
        raise ConfigError(f"{name} is {value}, must be finite and {allowed}")
