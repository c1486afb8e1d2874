"""The slow loop on virtual time: the front's estimates and allocator, and who follows them.

``cluster.planner`` does the same over HTTP with a journal: looks every second, allocates every
period, and replicas and router follow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from collm.cluster.planner import Estimates
from collm.cluster.planning.allocation import Allocation
from collm.cluster.planning.allocator import Allocator
from collm.cluster.planning.estimates import LearnedEstimates
from collm.cluster.planning.problem import AllocationProblem
from collm.cluster.planning_config import PlanningConfig
from collm.sim.events import EventQueue, Rank
from collm.sim.front import RouterDispatcher
from collm.sim.replica import SimReplica
from collm.sim.versions import ADAPTER
from collm.types import ReplicaSnapshot

_LOOK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliberation:
    """What plans: the front's own, or what it is compared with."""

    make_estimates: Callable[[PlanningConfig], Estimates] = LearnedEstimates
    allocator: Allocator = Allocator()


@dataclass(frozen=True, slots=True)
class SimDecision:
    """An allocation, and what it was computed from."""

    problem: AllocationProblem
    allocation: Allocation


class SimPlanner:
    """Allocates while the simulation runs.

    Args:
        config: As a front's.
        replicas: The cluster, by name.
        dispatcher: Follows prices and traffic, and knows what arrives.
        queue: Virtual time.
        deliberation: What plans.
    """

    def __init__(
        self,
        config: PlanningConfig,
        replicas: Mapping[str, SimReplica],
        dispatcher: RouterDispatcher,
        queue: EventQueue,
        deliberation: Deliberation,
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._dispatcher = dispatcher
        self._queue = queue
        self._estimates = deliberation.make_estimates(config)
        self._allocator = deliberation.allocator
        self._next_s = config.period_s
        self.decision: SimDecision | None = None
        """What is in force."""

    @property
    def members(self) -> tuple[str, ...]:
        """Who should train the next round; empty leaves it open."""
        decision = self.decision
        return () if decision is None else decision.allocation.members.get(ADAPTER, ())

    def start(self) -> None:
        """Begin to look."""
        self._queue.put(self._queue.now_s, Rank.ALLOCATION, self._look)

    def _look(self, now_s: float) -> None:
        live = {name: self._see(one, now_s) for name, one in self._replicas.items()}
        seen = {name: snapshot for name, snapshot in live.items() if snapshot is not None}
        self._estimates.look(seen, now_s)
        if now_s >= self._next_s and seen:
            self._next_s = now_s + self._config.period_s
            problem = self._estimates.problem(seen, now_s)
            if self.decision is not None:
                problem = replace(problem, traffic=self.decision.allocation.traffic)
            self.decision = SimDecision(problem, self._allocator.solve(problem))
            self._follow(self.decision.allocation)
        self._queue.put(now_s + _LOOK_S, Rank.ALLOCATION, self._look)

    def _see(self, replica: SimReplica, now_s: float) -> ReplicaSnapshot | None:
        if not replica.answers(now_s):
            return None
        replica.loop.advance(now_s)
        return replica.snapshot(now_s, with_totals=True)

    def _follow(self, allocation: Allocation) -> None:
        self._dispatcher.router.follow(allocation.prices, allocation.traffic)
        for name, replica in self._replicas.items():
            grant = allocation.grants.get(name, {}).get(ADAPTER)
            replica.grant(
                0.0 if grant is None else grant.credit_share,
                None if grant is None else grant.batch_tokens,
            )
