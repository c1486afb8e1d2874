"""Building a simulated replica: the parts of ``replica.engine_parts``, without what computes."""

from dataclasses import replace
from random import Random

from collm.engine.scheduler import Scheduler
from collm.metrics.loop_times import LoopTimes
from collm.metrics.totals import Totals
from collm.pacing.budgets import Budget, QuantumCost, make_budget
from collm.pacing.chunking import make_prefill_limit
from collm.pacing.config import PacingConfig
from collm.pacing.credit import Credit
from collm.pacing.deadlines import PrefillLimit, StepCost
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
from collm.sim.replica import Deciders, SimReplica
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
    pacing = config.pacing
    blocks = CountedBlocks(profile.num_blocks, profile.block_size)
    versions = Versions(first)
    times = LoopTimes()
    totals = Totals(pacing, times)
    make_credit = Credit if config.corrects_credit else UncorrectedCredit
    credit = make_credit(pacing.credit_share, pacing.credit_burst_s)
    step_cost: StepCosts
    quantum_cost: QuantumCost
    if config.costs == "learned":
        step_cost = learning_step_cost(profile, pacing.quantile)
        quantum_cost = learning_quantum_cost(profile, pacing.quantile)
    else:
        step_cost = GivenStepCost(profile, pacing.quantile)
        quantum_cost = GivenQuantumCost(profile, pacing.quantile)
    limit = make_prefill_limit(pacing, step_cost)
    scheduler = Scheduler(
        config.scheduler, blocks, versions, limit, frozenset(), profile.max_model_len
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
        budget=_budget(role, profile, pacing, step_cost, quantum_cost, credit, limit, duty),
        objectives=pacing.objectives,
        step_cost=step_cost,
        device=Device(profile, seed),
        duty=duty,
        trainer=trainer,
        log=SimLog(name, pacing, credit, totals, front),
        times=times,
        totals=totals,
        on_candidate=learner.found_better,
    )
    return SimReplica(
        name,
        role,
        profile,
        pacing,
        Deciders(
            scheduler=scheduler, blocks=blocks, step_cost=step_cost, credit=credit, totals=totals
        ),
        SimLoop(parts, profile.request_s, fast_forward=config.fast_forward),
        learner,
    )


def _duty(role: Role, profile: Profile, index: int) -> AlwaysOn | Shifts:
    if role.shift_s is None:
        return AlwaysOn()
    # Every other replica begins with training, so that somebody serves at any time.
    period_s = 2.0 * (role.shift_s + profile.reload_s)
    offset_s = 0.5 * period_s if index % 2 else 0.0
    return Shifts(shift_s=role.shift_s, reload_s=profile.reload_s, offset_s=offset_s)


def _budget(
    role: Role,
    profile: Profile,
    pacing: PacingConfig,
    step_cost: StepCost,
    quantum_cost: QuantumCost,
    credit: Credit,
    limit: PrefillLimit,
    duty: AlwaysOn | Shifts,
) -> Budget:
    """Return what lets quanta run under a role."""
    if isinstance(duty, Shifts):
        return ShiftBudget(quantum_cost, duty)
    if role.tokens_per_step is not None:
        return TokenLevelBudget(quantum_cost, role.tokens_per_step * training_token_s(profile))
    if role.budget is not None:
        pacing = replace(pacing, budget=role.budget)
    return make_budget(pacing, step_cost, quantum_cost, credit, limit)
