"""Estimates that need no past: how replicas stand now, and what they were sent lately."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from collm.cluster.planning.problem import (
    AdapterTerms,
    AllocationProblem,
    PairTerms,
    ReplicaTerms,
)
from collm.cluster.planning_config import PlanningConfig
from collm.types import ReplicaSnapshot, StepCoefficients

_OUTPUT_TOKENS = 64.0
_PROMPT_TOKENS = 200.0
"""What a request takes where nothing else is known; the router guesses the same answer's length."""
_STEEPNESS = 6.0
"""Of the chance around the objective, log-logistic: as the router's."""
_MOST_SEQUENCES = 1e4


class Arrivals(Protocol):
    """Knows how much is asked for; ``cluster.sent.Sent`` fits."""

    def arrivals_per_s(self, adapter: str, now_s: float) -> float:
        """Return the requests per second for an adapter, of late."""
        ...


@dataclass(frozen=True, slots=True)
class StepAttainment:
    """Chance and free time by a replica's own step cost, for requests of a usual length.

    ``n`` sequences run side by side when ``n = λ · (time of a whole request among n)``; the time
    per token is then the step's.
    """

    cost: StepCoefficients
    tpot_s: float

    def probability(self, arrivals_per_s: float, credit_share: float) -> float:
        """Return the chance that a request's time per token meets the objective."""
        stretch = 1.0 / (1.0 - credit_share)
        num_sequences = self._num_sequences(arrivals_per_s, stretch)
        step_s = self._step_s(max(num_sequences, 1.0), stretch)
        return float(1.0 / (1.0 + (step_s / self.tpot_s) ** _STEEPNESS))

    def free_share(self, arrivals_per_s: float) -> float:
        """Return the share of the time in which no sequence runs."""
        return math.exp(-self._num_sequences(arrivals_per_s, 1.0))

    def _num_sequences(self, arrivals_per_s: float, stretch: float) -> float:
        cost = self.cost
        fixed_s = stretch * arrivals_per_s * _OUTPUT_TOKENS * cost.constant_s
        each_s = stretch * arrivals_per_s * self._work_s
        return fixed_s / (1.0 - each_s) if each_s < 1.0 else _MOST_SEQUENCES

    def _step_s(self, num_sequences: float, stretch: float) -> float:
        per_sequence_s = self._work_s / _OUTPUT_TOKENS
        return stretch * (self.cost.constant_s + per_sequence_s * num_sequences)

    @property
    def _work_s(self) -> float:
        """Time that a request adds to the steps it shares."""
        cost = self.cost
        context_s = cost.context_s * (_PROMPT_TOKENS + _OUTPUT_TOKENS / 2.0)
        return _OUTPUT_TOKENS * (cost.decode_s + context_s) + _PROMPT_TOKENS * cost.prefill_s


class PresentEstimates:
    """``Estimates`` from snapshots alone: shares out traffic and prices, buys no training.

    Args:
        config: What the operator set.
        arrivals: What is asked for.
    """

    def __init__(self, config: PlanningConfig, arrivals: Arrivals) -> None:
        self._config = config
        self._arrivals = arrivals

    def look(self, live: Mapping[str, ReplicaSnapshot], now_s: float) -> None:
        """Learn nothing."""

    def problem(self, live: Mapping[str, ReplicaSnapshot], now_s: float) -> AllocationProblem:
        """Return the problem of the round that begins now, of these replicas."""
        taking = {name: one for name, one in live.items() if not one.is_draining}
        models = dict.fromkeys(
            name for one in taking.values() for name in one.names if "@" not in name
        )
        return AllocationProblem(
            replicas={
                name: ReplicaTerms(
                    attainment=StepAttainment(one.step_coefficients, one.tpot_s),
                    max_credit_share=self._config.max_credit_share,
                )
                for name, one in taking.items()
            },
            adapters={
                name: AdapterTerms(
                    arrivals_per_s=self._arrivals.arrivals_per_s(name, now_s),
                    min_arrivals_per_s=self._config.min_arrivals_per_s,
                )
                for name in models
            },
            pairs={
                (replica_id, name): PairTerms(quality=one.quality.get(name, 1.0))
                for replica_id, one in taking.items()
                for name in models
                if name in one.names
            },
            round_s=self._config.period_s,
            horizon_rounds=self._config.horizon_rounds,
        )
