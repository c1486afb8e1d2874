"""Building a simulated replica: the parts of ``replica.engine_parts``, without what computes."""

from dataclasses import dataclass, replace
from random import Random

from collm.engine.scheduler import Scheduler
from collm.metrics.loop_times import LoopTimes
from collm.metrics.totals import Totals
from collm.pacing.budgets import Budget, QuantumCost, make_budget
from collm.pacing.chunking import make_prefill_limit
from collm.pacing.config import PacingConfig
from collm.pacing.credit import Credit
from collm.pacing.deadlines import PrefillLimit
from collm.sim.blocks import CountedBlocks
from collm.sim.budgets import ShiftBudget, TokenLevelBudget, UncorrectedCredit
from collm.sim.config import SimConfig
from collm.sim.device import (
    Device,
    GivenQuantumCost,
    GivenStepCost,
    StepCosts,
    learning_quantum_cost,
    learning_step_cost,
)
from collm.sim.duty import AlwaysOn, Shifts
from collm.sim.learner import SimLearner
from collm.sim.log import FrontDesk, SimLog
from collm.sim.loop import LoopParts, SimLoop
from collm.sim.policies import Role
from collm.sim.profile import Profile
from collm.sim.replica import SimReplica
from collm.sim.trainer import SimTrainer, Weights, training_token_s
from collm.sim.versions import Version, Versions


def build_replica(
    index: int,
    role: Role,
    profile: Profile,
    config: SimConfig,
    weights: Weights,
    first: Version,
    front: FrontDesk,
    *,
    learns_alone: bool,
) -> SimReplica:
    """Return replica number ``index`` of a cluster.

    Args:
        index: From 0.
        role: What it does.
        profile: Its device.
        config: The cluster's.
        weights: Its data.
        first: What it serves at the start.
        front: Is told of answers.
        learns_alone: Whether it serves what its own gate found better; otherwise it learns in
            rounds.
    """
    name, seed = f"replica-{index}", f"{config.seed}/{index}"
    pacing, versions, times = _pacing(profile, config), Versions(first), LoopTimes()
    totals = Totals(pacing.config, times)
    blocks = CountedBlocks(profile.num_blocks, profile.block_size)
    scheduler = Scheduler(
        config.scheduler, blocks, versions, pacing.limit, frozenset(), profile.max_model_len
    )
    trainer = None
    if role.trains:
        random, num_domains = Random(f"{seed}/gate"), config.mix.num_domains
        trainer = SimTrainer(profile, weights, num_domains, first.knowledge, random, totals)
        if not learns_alone:
            trainer.train_up_to(0)  # until a round asks for more
    learner = SimLearner(name, versions, trainer, is_alone=learns_alone)
    duty = _duty(role, profile, index)
    parts = LoopParts(
        scheduler=scheduler,
        blocks=blocks,
        credit=pacing.credit,
        budget=_budget(role, profile, pacing, duty),
        objectives=pacing.config.objectives,
        step_cost=pacing.step_cost,
        device=Device(profile, seed),
        duty=duty,
        trainer=trainer,
        log=SimLog(name, pacing.config, pacing.credit, totals, front),
        times=times,
        totals=totals,
        on_candidate=learner.found_better,
    )
    loop = SimLoop(parts, profile.request_s, fast_forward=config.fast_forward)
    return SimReplica(name, role, profile, pacing.config, parts, loop, learner)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pacing:
    """What says how fast a replica may work and train."""

    config: PacingConfig
    step_cost: StepCosts
    quantum_cost: QuantumCost
    credit: Credit
    limit: PrefillLimit


def _pacing(profile: Profile, config: SimConfig) -> _Pacing:
    pacing, step_cost, quantum_cost = config.pacing, *_costs(profile, config)
    make_credit = Credit if config.corrects_credit else UncorrectedCredit
    return _Pacing(
        config=pacing,
        step_cost=step_cost,
        quantum_cost=quantum_cost,
        credit=make_credit(pacing.credit_share, pacing.credit_burst_s),
        limit=make_prefill_limit(pacing, step_cost),
    )


def _costs(profile: Profile, config: SimConfig) -> tuple[StepCosts, QuantumCost]:
    """Return what is believed of the times of steps and quanta."""
    quantile = config.pacing.quantile
    if config.costs == "learned":
        return learning_step_cost(profile, quantile), learning_quantum_cost(profile, quantile)
    return GivenStepCost(profile, quantile), GivenQuantumCost(profile, quantile)


def _duty(role: Role, profile: Profile, index: int) -> AlwaysOn | Shifts:
    if role.shift_s is None:
        return AlwaysOn()
    # Every other replica begins with training, so that somebody serves at any time.
    period_s = 2.0 * (role.shift_s + profile.reload_s)
    offset_s = 0.5 * period_s if index % 2 else 0.0
    return Shifts(shift_s=role.shift_s, reload_s=profile.reload_s, offset_s=offset_s)


def _budget(role: Role, profile: Profile, pacing: _Pacing, duty: AlwaysOn | Shifts) -> Budget:
    """Return what lets quanta run under a role."""
    if isinstance(duty, Shifts):
        return ShiftBudget(pacing.quantum_cost, duty)
    if role.tokens_per_step is not None:
        step_training_s = role.tokens_per_step * training_token_s(profile)
        return TokenLevelBudget(pacing.quantum_cost, step_training_s)
    config = pacing.config
    if role.budget is not None:
        config = replace(config, budget=role.budget)
    return make_budget(config, pacing.step_cost, pacing.quantum_cost, pacing.credit, pacing.limit)
