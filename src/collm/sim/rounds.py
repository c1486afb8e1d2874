"""Federated rounds of a simulated cluster: the real rules and messages, on virtual time.

``cluster.round_machine`` drives the same rules over a journal, files and HTTP, which a simulation
has not: ``choose_members`` casts a round, ``next_move`` says when to stop waiting, ``judge``
decides about the aggregate. What members learned adds up, each token discounted.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from collm.cluster.round_rules import (
    GRACE_S,
    MemberState,
    Move,
    choose_members,
    next_gate_move,
    next_move,
    num_judged,
)
from collm.federated.rounds import GateReport, RoundPlan, RoundStatus, SliceSums
from collm.federated.verdict import judge
from collm.sim.config import RoundSettings
from collm.sim.events import EventQueue, Rank
from collm.sim.planning import SimPlanner
from collm.sim.replica import SimReplica
from collm.sim.trainer import SimTrainer
from collm.sim.versions import ADAPTER, Version
from collm.store.rounds import MemberOutcome
from collm.types import VersionId

_POLL_S = 0.25
"""As often as a coordinator asks its members."""
_LOOK_S = 1.0
"""Until too few replicas are counted again."""


@dataclass(slots=True)
class _Part:
    """One member's part in the round under way."""

    trainer: SimTrainer
    ends_at: int
    """Trained tokens at which it is done."""
    heard_at_s: float
    outcome: MemberOutcome = MemberOutcome.OPEN
    update: tuple[float, ...] = ()
    """What its shadow knew when it reported."""

    def report(self) -> None:
        """Take what was learned by now."""
        self.update = self.trainer.report()
        self.outcome = MemberOutcome.REPORTED


@dataclass(slots=True)
class _Round:
    """The round under way."""

    plan: RoundPlan
    base: Version
    due_at_s: float
    parts: dict[str, _Part]
    status: RoundStatus = RoundStatus.TRAINING
    candidate: Version | None = None
    num_judged: int = 0
    """Held-out samples that each member compares the candidate on."""
    reports: dict[str, GateReport] = field(default_factory=dict)


class SimRounds:
    """Runs one round after the other on the replicas that train.

    Args:
        settings: Of all rounds.
        replicas: The cluster, by name.
        first: What is served at the start.
        queue: Virtual time.
        random: Draws what members see of a candidate beside the truth.
        planner: Says whose part is worth waiting for; ``None`` leaves it open.
    """

    def __init__(
        self,
        settings: RoundSettings,
        replicas: Mapping[str, SimReplica],
        first: Version,
        queue: EventQueue,
        random: Random,
        planner: SimPlanner | None = None,
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._queue = queue
        self._random = random
        self._planner = planner
        self._round: _Round | None = None
        self.active = first
        """The latest version that was promoted everywhere."""
        self.num_rounds = 0
        self.outcomes: dict[RoundStatus, int] = {}
        """How many rounds ended how."""

    def start(self) -> None:
        """Begin with the first round."""
        self._queue.put(self._queue.now_s, Rank.ROUND, self._begin)

    def _begin(self, now_s: float) -> None:
        trainers = self._trainers(now_s)
        # Who only trains drains, in the words of its snapshot; here that says nothing.
        snapshots = {
            name: replace(self._replicas[name].snapshot(now_s), is_draining=False)
            for name in trainers
        }
        wanted = () if self._planner is None else self._planner.members
        chosen = {name: one for name, one in snapshots.items() if name in wanted}
        cast = choose_members(chosen, None, 1) or choose_members(snapshots, None, 1)
        if cast is None:
            self._queue.put(now_s + _LOOK_S, Rank.ROUND, self._begin)
            return
        self.num_rounds += 1
        settings = self._settings
        plan = RoundPlan(
            adapter=ADAPTER,
            round=self.num_rounds,
            members=cast.members,
            base_version=self.active.version,
            max_tokens=settings.tokens_per_round,
            deadline_s=settings.deadline_s,
        )
        parts = {}
        for member in cast.members:
            trainer = trainers[member]
            trainer.begin_round(plan.max_tokens, now_s)
            self._replicas[member].loop.wake(now_s)
            parts[member] = _Part(trainer, trainer.num_tokens + plan.max_tokens, now_s)
        self._round = _Round(plan, self.active, now_s + plan.deadline_s, parts)
        self._queue.put(now_s + _POLL_S, Rank.ROUND, self._collect)

    def _collect(self, now_s: float) -> None:
        """Take in what members have trained, until the round can go on."""
        current = self._current
        self._hear(current, now_s)
        for part in current.parts.values():
            is_done = part.trainer.num_tokens >= part.ends_at
            if part.outcome is MemberOutcome.OPEN and part.heard_at_s == now_s and is_done:
                part.report()
        move = self._move(current, now_s)
        if move is Move.HURRY:
            for part in current.parts.values():
                if part.outcome is MemberOutcome.OPEN and part.heard_at_s == now_s:
                    part.report()
            move = self._move(current, now_s)
        if move is Move.TOO_FEW:
            self._end(RoundStatus.ABANDONED, now_s)
        elif move is Move.ENOUGH:
            self._queue.put(now_s + self._settings.transfer_s, Rank.ROUND, self._aggregate)
        else:
            self._queue.put(now_s + _POLL_S, Rank.ROUND, self._collect)

    def _aggregate(self, now_s: float) -> None:
        """Add up what was learned, and ask the members to judge it."""
        current = self._current
        total = list(current.base.knowledge)
        for part in current.parts.values():
            for domain, tokens in enumerate(part.update):
                gained = tokens - current.base.knowledge[domain]
                total[domain] += self._settings.discount * gained
        version = VersionId(f"{ADAPTER}@{current.plan.round}")
        current.candidate = Version(version, tuple(total))
        current.status = RoundStatus.GATING
        current.num_judged = num_judged(self._settings.gate, len(current.parts))
        for member, part in current.parts.items():
            if self._replicas[member].is_alive:
                self._replicas[member].loop.advance(now_s)
                part.trainer.compare(total, current.num_judged)
                self._replicas[member].loop.wake(now_s)
            part.outcome = MemberOutcome.OPEN
        current.due_at_s = now_s + self._settings.gate_deadline_s
        self._queue.put(now_s + _POLL_S, Rank.ROUND, self._gate)

    def _gate(self, now_s: float) -> None:
        """Take in the members' judgements; promote a better candidate everywhere."""
        current = self._current
        self._hear(current, now_s)
        for member, part in current.parts.items():
            rise = part.trainer.foreign_rise
            if part.outcome is MemberOutcome.OPEN and part.heard_at_s == now_s and rise is not None:
                part.outcome = MemberOutcome.REPORTED
                current.reports[member] = self._report(member, rise)
        move = next_gate_move(
            _states(current, now_s),
            quorum_share=self._settings.quorum_share,
            left_s=current.due_at_s - now_s,
            deadline_s=self._settings.gate_deadline_s,
        )
        if move is Move.TOO_FEW:
            self._end(RoundStatus.ABANDONED, now_s)
        elif move is not Move.ENOUGH:
            self._queue.put(now_s + _POLL_S, Rank.ROUND, self._gate)
        elif not judge(current.reports.values(), self._settings.gate).is_better:
            self._end(RoundStatus.REFUSED, now_s)
        else:
            self._queue.put(now_s + self._settings.transfer_s, Rank.ROUND, self._promote)

    def _promote(self, now_s: float) -> None:
        current = self._current
        assert current.candidate is not None
        self.active = current.candidate
        for replica in self._replicas.values():
            if replica.is_alive:
                replica.loop.advance(now_s)
                replica.learner.adopt(self.active)
        self._end(RoundStatus.DONE, now_s)

    def _end(self, status: RoundStatus, now_s: float) -> None:
        self.outcomes[status] = self.outcomes.get(status, 0) + 1
        self._round = None
        self._queue.put(now_s + self._settings.interval_s, Rank.ROUND, self._begin)

    @property
    def _current(self) -> _Round:
        assert self._round is not None
        return self._round

    def _trainers(self, now_s: float) -> dict[str, SimTrainer]:
        """Return the trainers of replicas that answer, brought up to the present."""
        found = {}
        for name, replica in self._replicas.items():
            if replica.answers(now_s) and replica.learner.trainer is not None:
                replica.loop.advance(now_s)
                found[name] = replica.learner.trainer
        return found

    def _hear(self, current: _Round, now_s: float) -> None:
        for member in self._trainers(now_s):
            if member in current.parts:
                current.parts[member].heard_at_s = now_s

    def _move(self, current: _Round, now_s: float) -> Move:
        return next_move(
            _states(current, now_s),
            quorum_share=self._settings.quorum_share,
            left_s=current.due_at_s - now_s,
            grace_s=GRACE_S,
        )

    def _report(self, member: str, rise: float) -> GateReport:
        n, spread = self._current.num_judged, self._current.parts[member].trainer.shape.loss_spread
        mean = self._random.gauss(rise, spread / math.sqrt(n))
        sums = SliceSums(n, n * mean, n * mean**2 + (n - 1) * spread**2)
        return GateReport(member=member, slices={"own": sums})


def _states(current: _Round, now_s: float) -> list[MemberState]:
    return [MemberState(part.outcome, now_s - part.heard_at_s) for part in current.parts.values()]
