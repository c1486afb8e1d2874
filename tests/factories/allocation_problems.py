"""Made-up truths that allocations are computed from, and random small problems of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from collm.cluster.planning.problem import (
    AdapterTerms,
    AllocationProblem,
    PairTerms,
    ReplicaTerms,
    Training,
)

# Formulas are plain arithmetic, so that they take numpy arrays as well as numbers.


@dataclass(frozen=True)
class Knee:
    """Bears ``capacity`` requests per second; beyond, the chance falls off a cliff."""

    capacity: float = 4.0
    steepness: float = 8.0
    drag: float = 1.0
    """How much of the capacity credit takes."""
    busy: float = 0.3
    """Share of wall time that one request per second takes; ever less for further ones."""

    def probability(self, arrivals_per_s: Any, credit_share: Any) -> Any:
        """Return the chance to meet the objectives."""
        borne = self.capacity * (1.0 - credit_share) ** self.drag
        return 1.0 / (1.0 + (arrivals_per_s / borne) ** self.steepness)

    def free_share(self, arrivals_per_s: Any) -> Any:
        """Return what serving leaves."""
        load = self.busy * arrivals_per_s**0.7
        return 1.0 / (1.0 + load)


@dataclass(frozen=True)
class PowerCurve:
    """Gains ``most`` in the end, the first part of it within ``scale`` tokens."""

    most: float = 0.5
    scale: float = 20_000.0
    power: float = 0.8

    def gain(self, more_tokens: Any) -> Any:
        """Return the quality gained."""
        return self.most * (1.0 - (1.0 + more_tokens / self.scale) ** -self.power)


@dataclass(frozen=True)
class NoiseScale:
    """Of ``noise`` tokens, relative to steps of 512."""

    noise: float = 2_000.0

    def e(self, batch_tokens: float) -> float:
        """Return the progress per token."""
        return (self.noise + 512.0) / (self.noise + batch_tokens)


@dataclass(frozen=True)
class Rate:
    """Tokens per second, less what each optimizer step takes."""

    per_s: float = 500.0
    step_s: float = 0.2

    def tokens_per_s(self, batch_tokens: float) -> float:
        """Return tokens per second of training time."""
        return batch_tokens / (batch_tokens / self.per_s + self.step_s)


BATCHES = (512, 1_024, 2_048, 4_096)


def training(**changes: Any) -> Training:
    """Return how some replica trains, with some terms changed."""
    values: dict[str, Any] = {"efficiency": NoiseScale(), "throughput": Rate(), "discount": 1.0}
    return Training(**(values | changes))


def replica(**changes: Any) -> ReplicaTerms:
    """Return what is known of a replica that may take credit."""
    return ReplicaTerms(**({"attainment": Knee(), "max_credit_share": 0.4} | changes))


def adapter(**changes: Any) -> AdapterTerms:
    """Return what is known of an adapter that is asked for and learns."""
    values: dict[str, Any] = {
        "arrivals_per_s": 4.0,
        "min_arrivals_per_s": 0.05,
        "curve": PowerCurve(),
        "batch_choices": BATCHES,
    }
    return AdapterTerms(**(values | changes))


def problem(
    replicas: Mapping[str, ReplicaTerms],
    adapters: Mapping[str, AdapterTerms],
    pairs: Mapping[tuple[str, str], PairTerms] | None = None,
    **changes: Any,
) -> AllocationProblem:
    """Return a problem; without ``pairs``, everybody serves and trains everything."""
    if pairs is None:
        pairs = {
            (one, name): PairTerms(quality=1.0, training=training())
            for one in replicas
            for name in adapters
        }
    values: dict[str, Any] = {"round_s": 60.0, "horizon_rounds": 10.0}
    return AllocationProblem(
        replicas=replicas, adapters=adapters, pairs=pairs, **(values | changes)
    )


def random_problem(rng: Random) -> AllocationProblem:
    """Return a problem of one to three replicas and one or two adapters, any load, any curve.

    Three replicas with two adapters train one each, so that it can still be solved by trying all.
    """
    num_replicas, num_adapters = rng.choice(((1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)))
    names = [f"r{number}" for number in range(num_replicas)]
    capacity = {name: rng.uniform(1.0, 6.0) for name in names}
    load = rng.choice((0.2, 0.5, 0.8, 1.0, 1.3)) * sum(capacity.values()) / num_adapters
    return problem(
        {name: _random_replica(rng, capacity[name]) for name in names},
        {f"a{number}": _random_adapter(rng, load) for number in range(num_adapters)},
        {
            (name, f"a{number}"): PairTerms(
                quality=rng.uniform(0.4, 1.5),
                training=_random_training(rng)
                if num_replicas < 3 or num_adapters == 1 or i % 2 == number
                else None,
            )
            for i, name in enumerate(names)
            for number in range(num_adapters)
        },
        horizon_rounds=rng.uniform(1.0, 30.0),
    )


def _random_replica(rng: Random, capacity: float) -> ReplicaTerms:
    return ReplicaTerms(
        attainment=Knee(
            capacity=capacity,
            steepness=rng.uniform(3.0, 16.0),
            drag=rng.uniform(0.3, 1.5),
            busy=rng.uniform(0.1, 1.0),
        ),
        debt=rng.choice((0.0, 0.0, rng.uniform(0.0, 3.0))),
        max_credit_share=rng.choice((0.0, 0.2, 0.4)),
    )


def _random_adapter(rng: Random, load: float) -> AdapterTerms:
    return AdapterTerms(
        arrivals_per_s=rng.choice((0.0, *(load * rng.uniform(0.3, 1.7) for _ in range(5)))),
        min_arrivals_per_s=0.05,
        curve=PowerCurve(
            most=rng.uniform(0.0, 1.0),
            scale=10.0 ** rng.uniform(3.0, 6.0),
            power=rng.uniform(0.2, 1.0),
        ),
        batch_choices=BATCHES,
    )


def _random_training(rng: Random) -> Training:
    return Training(
        efficiency=NoiseScale(10.0 ** rng.uniform(2.0, 5.0)),
        throughput=Rate(rng.uniform(50.0, 1_000.0), rng.uniform(0.01, 1.0)),
        discount=rng.uniform(0.2, 1.0),
    )
