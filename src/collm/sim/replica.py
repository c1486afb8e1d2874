"""A simulated replica, as its front sees it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from collm.cluster.planning.adapter_estimates import FILLED_SHARE
from collm.engine.plan import Backlog
from collm.pacing.config import PacingConfig
from collm.pacing.quanta import Quantum
from collm.sim.device import step_names
from collm.sim.faults import Fault
from collm.sim.learner import SimLearner
from collm.sim.loop import LoopParts, SimLoop
from collm.sim.policies import Role
from collm.sim.profile import Profile
from collm.sim.versions import ADAPTER
from collm.types import (
    Evaluation,
    LearningState,
    ReplicaSnapshot,
    ReplicaTotals,
    StepCoefficients,
    VersionId,
)

_NO_TOTALS = ReplicaTotals()
_ALMOST = 0.999
_NUDGE_S = 2e-9
"""More than what a duty puts between the border of a turn and when it says that it changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Adapter:
    """What snapshots say about the adapter."""

    cause: tuple[VersionId, tuple[float, float] | None, Evaluation | None]
    """What it was made from."""
    active: Mapping[str, VersionId]
    quality: Mapping[str, float]
    quality_noise: Mapping[str, float]
    learning: Mapping[str, LearningState]


class Glance(NamedTuple):
    """What of a replica changes with time: few snapshots are read, and most of one stays the same.

    A tuple, as one is made of every replica several times a second.
    """

    taken_at_s: float
    num_running: int
    num_waiting: int
    backlog: Backlog
    num_free_blocks: int
    credit_share: float
    credit_scale: float
    step_coefficients: StepCoefficients
    adapter: "_Adapter"
    is_draining: bool


class SimReplica:
    """One replica: its loop, what it serves, how it stands.

    Args:
        name: Its own.
        role: What it does.
        profile: Its device.
        pacing: What was promised.
        parts: What its step loop is made of.
        loop: Its step loop.
        learner: What it learns and serves.
    """

    def __init__(
        self,
        name: str,
        role: Role,
        profile: Profile,
        pacing: PacingConfig,
        parts: LoopParts,
        loop: SimLoop,
        learner: SimLearner,
    ) -> None:
        self.name = name
        self.role = role
        self.loop = loop
        self.learner = learner
        self.is_alive = True
        self.silent_until_s = 0.0
        self._silent_from_s = 0.0
        self._profile = profile
        self._pacing = pacing
        self._parts = parts
        self._programs: dict[int, tuple[Sequence[Quantum], float]] = {}
        self._known_adapter: _Adapter | None = None
        self._known_coefficients: tuple[tuple[float, ...], StepCoefficients] | None = None

    def answers(self, now_s: float) -> bool:
        """Whether it answers who asks now."""
        return self.is_alive and now_s >= self.silent_until_s

    def silent_s(self, now_s: float) -> float:
        """Return since when it does not answer, if it does not."""
        return now_s - self._silent_from_s

    def suffer(self, fault: Fault, now_s: float) -> None:
        """Let something go wrong now."""
        if fault.kind != "slow":
            self._silent_from_s = now_s
        match fault.kind:
            case "dies":
                self.is_alive = False
                self.loop.die(now_s)
            case "slow":
                self.loop.slow_down(now_s, fault.factor)
            case "silent":
                self.silent_until_s = now_s + fault.for_s
                self.loop.stand_still(now_s, self.silent_until_s)

    def same_until_s(self, now_s: float) -> float:
        """Return up to when snapshots say the same of its adapter and of draining.

        Holds as long as nobody tells it anything, and its data stay what they are.
        """
        trainer, changes_s = self.learner.trainer, self._parts.duty.changes_s(now_s)
        changes_s -= _NUDGE_S
        if trainer is None:
            return changes_s
        # Sums are rounded.
        return min(changes_s, now_s + _ALMOST * trainer.least_s(self._least_s))

    def _least_s(self, program: Sequence[Quantum]) -> float:
        """Return the least time of a program: there are three, the same ones all the time."""
        known = self._programs.get(id(program))
        if known is None:
            known = self._programs[id(program)] = program, self._parts.device.least_s(program)
        return known[1]

    @property
    def num_preemptions(self) -> int:
        """How often a sequence lost its blocks to an earlier one."""
        return self._parts.scheduler.num_preemptions

    def grant(self, credit_share: float, tokens_per_step: int | None) -> None:
        """Follow an allocation: what the configuration says is the least credit.

        Args:
            credit_share: Guaranteed share of wall time for training.
            tokens_per_step: Of an optimizer step; ``None`` takes the profile's.
        """
        self._parts.credit.set_share(max(credit_share, self._pacing.credit_share))
        trainer = self.learner.trainer
        if trainer is not None:
            trainer.tokens_per_step = tokens_per_step or trainer.shape.tokens_per_step

    def snapshot(self, now_s: float, *, with_totals: bool = False) -> ReplicaSnapshot:
        """Return how it stands, as ``replica.outlook`` says it; the router needs no totals."""
        totals = self._parts.totals.totals() if with_totals else _NO_TOTALS
        return self.write_up(self.glance(now_s), totals)

    def glance(self, now_s: float) -> Glance:
        """Return what a snapshot of now says beyond what never changes."""
        parts, loop = self._parts, self.loop
        scheduler, credit = parts.scheduler, parts.credit
        return Glance(
            now_s,
            scheduler.num_running,
            scheduler.num_waiting,
            loop.backlog(),
            parts.blocks.num_free - loop.num_lacking(),
            credit.share,
            credit.scale,
            self._step_coefficients(),
            self._adapter(now_s),
            not (self.role.serves and loop.is_open(now_s)),
        )

    def write_up(self, glance: Glance, totals: ReplicaTotals = _NO_TOTALS) -> ReplicaSnapshot:
        """Return the snapshot of an earlier glance."""
        backlog, adapter = glance.backlog, glance.adapter
        return ReplicaSnapshot(
            replica_id=self.name,
            url="",
            taken_at_s=glance.taken_at_s,
            num_running=glance.num_running,
            num_waiting=glance.num_waiting,
            queued_prefill_tokens=backlog.num_prefill_tokens,
            num_context_tokens=backlog.num_context_tokens,
            num_free_blocks=glance.num_free_blocks,
            block_size=self._profile.block_size,
            credit_share=glance.credit_share,
            bytes_per_token=self._profile.bytes_per_token,
            step_coefficients=glance.step_coefficients,
            ttft_s=self._pacing.ttft_s,
            tpot_s=self._pacing.tpot_s,
            names=(ADAPTER,),
            active=adapter.active,
            quality=adapter.quality,
            quality_noise=adapter.quality_noise,
            max_model_len=self._profile.max_model_len,
            is_draining=glance.is_draining,
            base_digest="simulated",
            learning=adapter.learning,
            totals=totals,
            credit_scale=glance.credit_scale,
        )

    def _adapter(self, now_s: float) -> _Adapter:
        """Return what there is to say about the adapter; a new value only when that changed."""
        version, trainer = self.learner.versions.active.version, self.learner.trainer
        found = None if trainer is None else trainer.quality(now_s)
        evaluation = None if trainer is None else trainer.evaluation
        known = self._known_adapter
        if known is None or known.cause != (version, found, evaluation):
            known = self._known_adapter = _Adapter(
                cause=(version, found, evaluation),
                active={ADAPTER: version},
                quality={} if found is None else {ADAPTER: found[0]},
                quality_noise={} if found is None else {ADAPTER: found[1]},
                learning=self._learning(),
            )
        return known

    def _learning(self) -> dict[str, LearningState]:
        trainer = self.learner.trainer
        if trainer is None:
            return {}
        state = LearningState(
            tokens_per_step=trainer.shape.tokens_per_step,
            micro_batch_tokens=math.ceil(trainer.shape.micro_batch_sample_tokens / FILLED_SHARE),
            is_joint=not self.learner.is_alone,
            evaluation=trainer.evaluation,
        )
        return {ADAPTER: state}

    def _step_coefficients(self) -> StepCoefficients:
        """Return the fitted costs; a new value only when they were fitted anew."""
        coefficients = self._parts.step_cost.coefficients
        if self._known_coefficients is None or self._known_coefficients[0] is not coefficients:
            self._known_coefficients = (coefficients, StepCoefficients(**step_names(coefficients)))
        return self._known_coefficients[1]
