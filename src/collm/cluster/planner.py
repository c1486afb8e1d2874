"""The slow loop in the front: every period a new allocation, computed, journalled, handed out."""

import asyncio
import logging
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from collm.cluster.members import Members
from collm.cluster.planning.allocation import Allocation
from collm.cluster.planning.allocator import Allocator
from collm.cluster.planning.explain import describe, explain
from collm.cluster.planning.problem import AllocationProblem
from collm.cluster.planning_config import PlanningConfig
from collm.cluster.router import Router
from collm.cluster.timing import Timing
from collm.errors import CollmError, UnknownObjectError
from collm.federated.allotment import AdapterAllotment, Allotment
from collm.store.allocations import AllocationJournal, AllocationRecord
from collm.types import ReplicaSnapshot

_log = logging.getLogger(__name__)
_LOOK_S = 1.0
"""Time between two looks at the replicas: what they did is counted, and who lacks the allocation
gets it."""
_RENEWALS = 3.0
"""Times that an allocation is sent again before it would expire."""


class Estimates(Protocol):
    """What is learned of replicas and adapters, and the problem that follows from it."""

    def look(self, live: Mapping[str, ReplicaSnapshot], now_s: float) -> None:
        """Learn from how the live replicas stand."""
        ...

    def problem(self, live: Mapping[str, ReplicaSnapshot], now_s: float) -> AllocationProblem:
        """Return the problem of the round that begins now, of these replicas."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The allocation in force, and what it was computed from."""

    record: AllocationRecord
    problem: AllocationProblem
    allocation: Allocation


class Planner:
    """Plans while ``run`` runs; what is handed out outlives it. Belongs to one event loop.

    Args:
        config: What the operator set.
        estimates: Its own from now on.
        members: The live replicas.
        router: Follows prices and traffic shares.
        journal: Keeps every allocation with its inputs.
        timing: Where time comes from.
    """

    def __init__(
        self,
        config: PlanningConfig,
        estimates: Estimates,
        members: Members,
        router: Router,
        journal: AllocationJournal,
        timing: Timing,
    ) -> None:
        self._config = config
        self._estimates = estimates
        self._members = members
        self._router = router
        self._journal = journal
        self._timing = timing
        self._allocator = Allocator()
        self._decision: Decision | None = None
        self._sent_at_s: dict[str, float] = {}
        """When each replica was last told of the allocation in force."""

    async def run(self) -> None:
        """Look and plan until cancelled; a failure is logged and the next period tries again."""
        next_s = self._timing.clock.now_s() + self._config.period_s
        while True:
            live, now_s = self._members.live(), self._timing.clock.now_s()
            try:
                self._estimates.look(live, now_s)
                if now_s >= next_s and live:
                    next_s = now_s + self._config.period_s
                    await self.plan(live, now_s)
                await self._hand_out()
            except (CollmError, sqlite3.Error, ArithmeticError):
                _log.exception("planning failed; the allocation before stays in force")
            await self._timing.sleep(_LOOK_S)

    async def plan(self, live: Mapping[str, ReplicaSnapshot], now_s: float) -> Decision:
        """Make a new allocation and follow it; replicas are told at the next look."""
        # Seconds at most, in a thread beside the event loop: streams go on meanwhile.
        problem = await asyncio.to_thread(self._estimates.problem, live, now_s)
        if self._decision is not None:
            problem = replace(problem, traffic=self._decision.allocation.traffic)
        allocation = await asyncio.to_thread(self._allocator.solve, problem)
        record = await asyncio.to_thread(self._journal.add, describe(problem, allocation))
        self._router.follow(allocation.prices, allocation.traffic)
        self._decision = Decision(record=record, problem=problem, allocation=allocation)
        self._sent_at_s.clear()
        objective = allocation.objective
        _log.info(
            "allocation %d: serving %.1f, learning %.1f, debt %.1f",
            record.number,
            objective.serving,
            objective.learning,
            objective.debt,
        )
        return self._decision

    def members_of(self, adapter: str) -> tuple[str, ...]:
        """Return who should train an adapter's next round; empty to leave it open."""
        return () if self._decision is None else self._decision.allocation.members.get(adapter, ())

    def status(self, replica_id: str | None = None) -> dict[str, Any]:
        """Return the allocation in force as plain JSON values, or why one replica has its part.

        Raises:
            UnknownObjectError: There is no allocation yet, or the replica is not in it.
        """
        decision = self._decision
        if decision is None:
            raise UnknownObjectError(
                f"there is no allocation yet; the first comes {self._config.period_s:g} s after "
                "the front starts"
            )
        record = decision.record
        head = {"number": record.number, "made_at_s": record.made_at_s}
        if replica_id is None:
            return {**head, **record.content}
        if replica_id not in decision.problem.replicas:
            known = ", ".join(sorted(decision.problem.replicas))
            raise UnknownObjectError(
                f"allocation {record.number} has no replica {replica_id!r}; it has {known}"
            )
        return {**head, **explain(decision.problem, decision.allocation, replica_id)}

    async def _hand_out(self) -> None:
        """Tell the allocation to whoever does not have it, or has had it for long."""
        decision = self._decision
        if decision is None:
            return
        now_s = self._timing.clock.now_s()
        number = decision.record.number
        waiting = [
            replica_id
            for replica_id, snapshot in sorted(self._members.live().items())
            if replica_id in decision.problem.replicas
            and (snapshot.allocation != number or self._is_old(replica_id, now_s))
        ]
        await asyncio.gather(*(self._tell(decision, replica_id) for replica_id in waiting))

    def _is_old(self, replica_id: str, now_s: float) -> bool:
        sent_at_s = self._sent_at_s.get(replica_id)
        return sent_at_s is None or now_s - sent_at_s >= self._config.valid_s / _RENEWALS

    async def _tell(self, decision: Decision, replica_id: str) -> None:
        allotment = allotment_of(decision, replica_id, self._config.valid_s)
        try:
            await self._members.control(replica_id).follow(allotment)
        except CollmError as error:
            _log.warning("%s did not take allocation %d: %s", replica_id, allotment.number, error)
        else:
            self._sent_at_s[replica_id] = self._timing.clock.now_s()


class NoPlanner:
    """Every replica goes by its own settings."""

    async def run(self) -> None:
        """Do nothing until cancelled."""
        await asyncio.Event().wait()

    def members_of(self, adapter: str) -> tuple[str, ...]:
        """Leave it open."""
        return ()

    def status(self, replica_id: str | None = None) -> dict[str, Any]:
        """Raise ``UnknownObjectError``."""
        raise UnknownObjectError(
            "nothing is allocated: cluster.planning.policy is 'none'; set it to 'adaptive'"
        )


def allotment_of(decision: Decision, replica_id: str, valid_s: float) -> Allotment:
    """Return a replica's part of an allocation."""
    return Allotment(
        number=decision.record.number,
        valid_s=valid_s,
        adapters={
            adapter: AdapterAllotment(
                credit_share=grant.credit_share,
                time_share=grant.time_share,
                tokens_per_step=grant.batch_tokens,
            )
            for adapter, grant in decision.allocation.grants.get(replica_id, {}).items()
        },
    )
