"""One simulated run of benchmarks/coordination.py: its requests, its cluster, its figures."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import Any

from collm.cluster.planning.allocator import Allocator
from collm.cluster.planning.estimates import LearnedEstimates
from collm.cluster.planning_config import PlanningConfig
from collm.pacing.config import PacingConfig
from collm.sim.config import RoundSettings, SimConfig
from collm.sim.curve import Curve
from collm.sim.planning import Deliberation
from collm.sim.policies import POLICIES, Policy
from collm.sim.profile import Profile, load_profile
from collm.sim.report import RunLabels, SimReport, make_report
from collm.sim.requests import Mix, sim_requests
from collm.sim.simulation import Simulation
from collm.workload.traces import Trace, TraceRow, load_trace
from coordination_arms import Arm, Change, Changed

NUM_REPLICAS = 8
SLOWNESS = {"equal": (), "unequal": (4.0, 3.0, 2.0, 1.5, 1.5, 1.0, 1.0, 1.0)}
"""Of the devices: all alike, or as teams have them that bought some each year. The slowest come
first, as it is the first that `split` leaves to training."""
DEVICE = "llama-3.1-8b-a30"
_SEEDS_A_DRAW = 1_000
# Curves on which minutes matter: half of what can be learned takes 150,000 tokens, and a domain
# nobody has trained on is answered with Q = 0.59 and no task score at all.
LOSS = Curve(a=301.0, n0=50_000.0, b=0.5, c=0.35)
MISS = Curve(a=201.0, n0=50_000.0, b=0.5, c=0.1)
WARM_TOKENS = 100_000.0
SCORED_SHARE = 0.3
"""Of the requests, as in the paper's set-up."""
DRIFT_SHARE = 0.5
ROUNDS = RoundSettings(
    tokens_per_round=1_000_000, deadline_s=30.0, gate_deadline_s=10.0, discount=0.7
)
MAX_CREDIT_SHARE = 0.3
ATTAINMENT_TARGET = 0.98
PERIOD_S = 30.0
"""Short, as the runs are."""
RATE_FACTOR = 2.0
"""Load 3 comes near to what eight such replicas bear at all."""
PROMPT_DIVISOR = 4.0
"""The paper replays samples, whose prompts are far shorter than the trace's. Whole ones take longer
than the objective by themselves from 4,000 tokens on, and fill the cluster at twice their rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What all arms go through alike."""

    trace: str
    load: float
    """1 is ``RATE_FACTOR`` times the trace's own rate over all replicas, less as these are slower.
    """
    seed: int
    minutes: float
    devices: str = "equal"
    """A key of ``SLOWNESS``."""
    draw: int = 0
    """Draws step times, and what evaluations see, anew for the same requests."""

    @property
    def seconds(self) -> float:
        """Length of the observation."""
        return 60.0 * self.minutes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an arm came to in a cell."""

    figures: dict[str, Any]
    knowledge: tuple[float, ...]
    """Of the best adapter at the end."""


def device() -> Profile:
    """Return every replica's profile."""
    return replace(load_profile(DEVICE), loss=LOSS, miss=MISS)


def run_arm(cell: Cell, arm: Arm) -> Outcome:
    """Simulate an arm."""
    deliberation = Deliberation(
        make_estimates=LearnedEstimates if arm.change is None else partial(_changed, arm.change),
        allocator=Allocator(moves_traffic=arm.moves_traffic),
    )
    config = replace(
        _config(cell, is_planned=arm.is_planned),
        corrects_credit=arm.corrects_credit,
        rounds=replace(ROUNDS, gate=arm.gate),
        pacing=PacingConfig(budget=arm.budget),
    )
    return _run(cell, POLICIES[arm.policy], config, device(), deliberation=deliberation)


def run_oracle(cell: Cell, final: tuple[float, ...]) -> Outcome:
    """Simulate serving, from the start, with an adapter that knows ``final``."""
    config = _config(cell, is_planned=False)
    return _run(cell, POLICIES["oracle"], config, device(), final=final)


def _changed(change: Change, planning: PlanningConfig) -> Changed:
    return Changed(LearnedEstimates(planning), change)


def _config(cell: Cell, *, is_planned: bool) -> SimConfig:
    return SimConfig(
        num_replicas=NUM_REPLICAS,
        seed=cell.seed + _SEEDS_A_DRAW * cell.draw,
        slowness=SLOWNESS[cell.devices],
        costs="given",
        mix=Mix(
            num_domains=NUM_REPLICAS,
            scored_share=SCORED_SHARE,
            drift_at_s=0.5 * cell.seconds,
            drift_share=DRIFT_SHARE,
        ),
        warm_tokens=WARM_TOKENS,
        rounds=ROUNDS,
        planning=PlanningConfig(
            policy="adaptive" if is_planned else "none",
            period_s=PERIOD_S,
            max_credit_share=MAX_CREDIT_SHARE,
            attainment_target=ATTAINMENT_TARGET,
        ),
    )


def _run(cell: Cell, policy: Policy, config: SimConfig, profile: Profile, **parts: Any) -> Outcome:
    trace = window(cell, profile.max_model_len // 2)
    simulation = Simulation(profile, policy, config, **parts)
    end = simulation.run(sim_requests(trace, config.mix, cell.seed), cell.seconds)
    labels = RunLabels(
        policy=policy.name,
        profile=profile.name,
        profile_origin=profile.origin,
        seed=cell.seed,
        trace=cell.trace,
    )
    return Outcome(_figures(make_report(simulation, end, labels)), end.knowledge)


def _figures(report: SimReport) -> dict[str, Any]:
    """Return what is kept of a run, all of it simulated."""
    found = asdict(report)
    names = (
        *("duration_s", "num_requests", "attainment", "throughput_per_s", "quality"),
        *("paper_goodput_per_s", "task_goodput_per_s", "training_tokens_per_s"),
        *("num_promotions", "rounds", "outcomes"),
    )
    return {name: found[name] for name in names} | {
        "ttft_p99_s": report.ttft.p99_s,
        "tpot_p99_s": report.tpot.p99_s,
        "serve_share": _mean([one.serve_share for one in report.replicas]),
        "train_share": _mean([one.train_share for one in report.replicas]),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def window(cell: Cell, max_tokens: int) -> Trace:
    """Return a part of the trace that begins where the seed says, and wraps around at its end.

    Its times are divided by the load, its prompts shortened.
    """
    rows = load_trace(cell.trace)
    span_s = rows[-1].arrived_at_s
    start_s = Random(f"{cell.seed}/window").random() * span_s
    speeds = [1.0 / factor for factor in SLOWNESS[cell.devices]] or [1.0]
    factor = cell.load * RATE_FACTOR * _mean(speeds)
    num_laps = int(cell.seconds * factor / span_s) + 2
    moved = (
        ((row.arrived_at_s + lap * span_s - start_s) / factor, row)
        for lap in range(num_laps)
        for row in rows
    )
    return tuple(
        TraceRow(
            at_s,
            max(1, round(min(row.prompt_tokens, max_tokens) / PROMPT_DIVISOR)),
            min(row.output_tokens, max_tokens),
        )
        for at_s, row in moved
        if 0.0 <= at_s < cell.seconds
    )
