"""One round as a state machine over the journal.

::

    planned ─► training ─► aggregating ─► gating ─► promoting ─► done
                  │             │            │
                  └─ abandoned ─┴────────────┴─ refused

Each step reads the journal, does one thing that may be done twice, and records what came of it
before the next begins. A process killed anywhere therefore goes on where it was.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from collm.cluster.aggregating import Aggregation
from collm.cluster.collecting import Collection
from collm.cluster.gating import Gating
from collm.cluster.members import Members
from collm.cluster.round_config import RoundConfig
from collm.cluster.round_path import RoundObserver, RoundPath, Stage
from collm.cluster.round_rules import MAX_STALE_ROUNDS, num_judged
from collm.cluster.spreading import Spreader
from collm.cluster.timing import Timing
from collm.errors import RoundError
from collm.federated.rounds import GatePlan, RoundPlan, RoundStatus
from collm.federated.verdict import judge
from collm.store.front_folder import FrontFolder
from collm.store.rounds import MemberOutcome, RoundRecord

_log = logging.getLogger(__name__)


class RoundMachine:
    """Takes the rounds of one adapter from plan to end."""

    def __init__(
        self,
        config: RoundConfig,
        members: Members,
        folder: FrontFolder,
        timing: Timing,
        *,
        aggregation: Aggregation,
        spreader: Spreader,
        is_promoting: asyncio.Lock,
        observers: Sequence[RoundObserver] = (),
    ) -> None:
        """Run rounds as ``config`` says.

        Args:
            config: Quorum, deadlines and the gate.
            members: The live replicas.
            folder: The journal, updates and versions.
            timing: Where time comes from.
            aggregation: Makes candidates.
            spreader: Brings versions to replicas.
            is_promoting: Held while the adapter's active version changes.
            observers: Told of each round that ends.
        """
        self._config = config
        self._members = members
        self._folder = folder
        self._timing = timing
        self._aggregation = aggregation
        self._spreader = spreader
        self._is_promoting = is_promoting
        self._observers = tuple(observers)
        self._steps = {
            RoundStatus.PLANNED: self._ask,
            RoundStatus.TRAINING: self._collect,
            RoundStatus.AGGREGATING: self._aggregate,
            RoundStatus.GATING: self._gate,
            RoundStatus.PROMOTING: self._promote,
        }

    async def run(self, record: RoundRecord) -> RoundRecord:
        """Take a round from where it is to its end, and return it as it is then."""
        stages: list[Stage] = []
        while record.ended_at_s is None:
            _log.info("%s round %d: %s", record.adapter, record.round, record.status)
            name, started_at_s = record.status, self._timing.wall_s()
            record = await self._steps[RoundStatus(name)](record)
            stages.append(Stage(name, started_at_s, self._timing.wall_s()))
        parts = self._folder.rounds.members(record.adapter, record.round)
        for tell in self._observers:
            tell(RoundPath(record=record, members=parts, stages=tuple(stages)))
        _log.info("%s round %d: %s, %s", record.adapter, record.round, record.status, record.reason)
        oldest = record.round - MAX_STALE_ROUNDS
        await asyncio.to_thread(self._folder.updates.discard_before, record.adapter, oldest)
        return record

    async def _ask(self, record: RoundRecord) -> RoundRecord:
        plan = RoundPlan.from_json(record.plan)
        await self._collection(plan, plan.deadline_s).ask()
        due_at_s = self._timing.wall_s() + plan.deadline_s
        return await self._advance(record, RoundStatus.TRAINING, deadline_at_s=due_at_s)

    async def _collect(self, record: RoundRecord) -> RoundRecord:
        plan = RoundPlan.from_json(record.plan)
        assert record.deadline_at_s is not None
        # Not past the deadline, so that after a restart members have a chance to be heard; and not
        # beyond the plan, because the wall clock may have been set.
        left_s = record.deadline_at_s - self._timing.wall_s()
        left_s = min(max(left_s, 0.0), plan.deadline_s)
        if await self._collection(plan, left_s).run(self._config.quorum_share):
            return await self._advance(record, RoundStatus.AGGREGATING)
        return await self._end(record, RoundStatus.ABANDONED, self._why_too_few(record))

    async def _aggregate(self, record: RoundRecord) -> RoundRecord:
        plan = RoundPlan.from_json(record.plan)
        try:
            candidate, report, parts = await self._aggregation.run(plan, record.base_digest)
        except RoundError as error:
            return await self._end(record, RoundStatus.ABANDONED, str(error))
        keys = {part.member: (part.round, part.member) for part in parts}
        refused = {keys[member]: reason for member, reason in report.refused.items()}
        results = {"aggregation": report.to_json()}
        if candidate is None:
            reason = f"too few usable updates: {_listed(report.refused)}"
            return await self._end(
                record, RoundStatus.ABANDONED, reason, results=results, refused=refused
            )
        return await self._advance(
            record,
            RoundStatus.GATING,
            candidate=candidate.version,
            results=results,
            used=[keys[member] for member in report.weights],
            refused=refused,
        )

    async def _gate(self, record: RoundRecord) -> RoundRecord:
        plan = RoundPlan.from_json(record.plan)
        assert record.candidate is not None
        parts = self._folder.rounds.members(record.adapter, record.round)
        judges = tuple(it.member for it in parts if it.outcome is not MemberOutcome.DECLINED)
        gate_plan = GatePlan(
            adapter=record.adapter,
            round=record.round,
            candidate=record.candidate,
            active=plan.base_version,
            max_samples=num_judged(self._config.gate, len(judges)),
        )
        gating = Gating(
            gate_plan,
            judges,
            self._members,
            self._spreader,
            self._timing,
            deadline_s=self._config.gate_deadline_s,
        )
        reports = await gating.run(self._config.quorum_share)
        if reports is None:
            reason = f"too few members judged the candidate: {_listed(gating.failures)}"
            return await self._end(record, RoundStatus.ABANDONED, reason)
        decision = judge(reports, self._config.gate)
        results = {"gate": decision.numbers()}
        if not decision.is_better:
            return await self._end(
                record, RoundStatus.REFUSED, decision.verdict.value, results=results
            )
        return await self._advance(record, RoundStatus.PROMOTING, results=results)

    async def _promote(self, record: RoundRecord) -> RoundRecord:
        plan = RoundPlan.from_json(record.plan)
        assert record.candidate is not None
        decisions = self._folder.decisions
        async with self._is_promoting:
            active = decisions.active().get(record.adapter)
            if active not in (plan.base_version, record.candidate):
                before = plan.base_version or "the base"
                reason = f"{active or 'the base'} became active meanwhile, instead of {before}"
                return await self._end(record, RoundStatus.ABANDONED, reason)
            why = f"better in round {record.round}"
            numbers = record.results["gate"]
            # On record before it is served: who comes back catches up by the record.
            await asyncio.to_thread(decisions.promote, record.candidate, why, numbers)
            target = self._spreader.target(record.candidate)
            spread = await self._spreader.spread(target, why, numbers)
        reason = f"promoted on {', '.join(spread.reached) or 'no replica'}"
        if spread.is_partial:
            reason += f"; partial: {_listed(spread.missed)}"
        return await self._end(
            record, RoundStatus.DONE, reason, results={"promotion": spread.numbers()}
        )

    async def _advance(self, record: RoundRecord, status: RoundStatus, **found: Any) -> RoundRecord:
        """Take a round on with what a step found, in the words of ``RoundJournal.advance``."""
        return await asyncio.to_thread(self._folder.rounds.advance, record, status, **found)

    async def _end(
        self, record: RoundRecord, status: RoundStatus, reason: str, **found: Any
    ) -> RoundRecord:
        """End a round with what a step found, in the words of ``RoundJournal.end``."""
        return await asyncio.to_thread(self._folder.rounds.end, record, status, reason, **found)

    def _collection(self, plan: RoundPlan, left_s: float) -> Collection:
        return Collection(plan, self._members, self._folder, self._spreader, self._timing, left_s)

    def _why_too_few(self, record: RoundRecord) -> str:
        parts = self._folder.rounds.members(record.adapter, record.round)
        found = ", ".join(
            f"{part.member} {part.outcome}" + (f" ({part.reason})" if part.reason else "")
            for part in parts
        )
        return f"too few updates: {found}"


def _listed(reasons: Mapping[str, str]) -> str:
    """Return who said what, as far as anybody said anything."""
    return "; ".join(f"{who}: {why}" for who, why in sorted(reasons.items())) or "no answer"
