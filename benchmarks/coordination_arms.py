"""The ways that benchmarks/coordination.py compares: policies, and collm without one part."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from collm.cluster.planner import Estimates
from collm.cluster.planning.problem import AllocationProblem
from collm.cluster.round_config import ROUND_GATE
from collm.gate.config import GateConfig
from collm.pacing.config import BudgetName
from collm.sim.policies import POLICIES
from collm.types import ReplicaSnapshot

Live = Mapping[str, ReplicaSnapshot]
Change = Callable[[AllocationProblem, Live, float], AllocationProblem]
"""Takes something away from a problem, given how replicas stand and the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to run the cluster."""

    name: str
    policy: str
    is_planned: bool = False
    """Whether the allocator plans."""
    change: Change | None = None
    moves_traffic: bool = True
    corrects_credit: bool = True
    gate: GateConfig = ROUND_GATE
    """By what an aggregate is judged."""
    budget: BudgetName = "latency"
    """What replicas let training have between two steps, where the policy does not say."""


class Changed:
    """Estimates of which a part is taken away."""

    def __init__(self, estimates: Estimates, change: Change) -> None:
        self._estimates = estimates
        self._change = change

    def look(self, live: Live, now_s: float) -> None:
        self._estimates.look(live, now_s)

    def problem(self, live: Live, now_s: float) -> AllocationProblem:
        return self._change(self._estimates.problem(live, now_s), live, now_s)


def without_forecast(problem: AllocationProblem, live: Live, now_s: float) -> AllocationProblem:
    """Plan for the mean rate since the start, whatever comes of late."""
    adapters = {}
    for name, terms in problem.adapters.items():
        totals = [one.totals.adapters.get(name) for one in live.values()]
        num_arrived = sum(one.num_arrived for one in totals if one is not None)
        adapters[name] = replace(terms, arrivals_per_s=num_arrived / max(now_s, 1.0))
    return replace(problem, adapters=adapters)


def without_noise_scale(problem: AllocationProblem, live: Live, now_s: float) -> AllocationProblem:
    """Leave optimizer steps as long as they are configured."""
    adapters = {
        name: replace(terms, batch_choices=_configured(terms.batch_choices, name, live))
        for name, terms in problem.adapters.items()
    }
    return replace(problem, adapters=adapters)


def _configured(choices: tuple[int, ...], adapter: str, live: Live) -> tuple[int, ...]:
    found = {
        one.learning[adapter].tokens_per_step for one in live.values() if adapter in one.learning
    }
    return tuple(found)[:1] if choices and found else choices


def without_debt(problem: AllocationProblem, live: Live, now_s: float) -> AllocationProblem:
    """Forget what was missed."""
    replicas = {name: replace(terms, debt=0.0) for name, terms in problem.replicas.items()}
    return replace(problem, replicas=replicas)


def _planned(name: str, **parts: object) -> Arm:
    return Arm(name=name, policy="collm", is_planned=True, **parts)


ABLATIONS = (
    _planned("no forecast", change=without_forecast),
    _planned("no consolidation", moves_traffic=False),
    _planned("no noise scale", change=without_noise_scale),
    _planned("no debt", change=without_debt),
    _planned("no correction", corrects_credit=False),
    Arm(name="no allocator", policy="collm"),
)
"""``collm`` without one of the coordinator's parts, and without its slow loop as a whole."""

_SHARED_BY_EIGHT = 512
"""Twice as many, shared by eight members, are 128 for each."""

ARMS = {
    arm.name: arm
    for arm in (
        _planned("collm"),
        _planned("128 samples each", gate=replace(ROUND_GATE, max_samples=_SHARED_BY_EIGHT)),
        _planned("objective budget", budget="objective"),
        Arm(name="objective budget, fixed", policy="collm@fixed", budget="objective"),
        *(Arm(name=name, policy=name) for name in POLICIES if name not in ("collm", "oracle")),
        *ABLATIONS,
    )
}
"""By name; the oracle is run beside them."""
