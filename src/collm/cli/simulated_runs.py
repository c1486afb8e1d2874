"""One policy's simulated run, and the oracle's beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from collm.cli.waiting import waiting
from collm.errors import ConfigError, DataError
from collm.sim.config import SimConfig
from collm.sim.policies import POLICIES, Policy
from collm.sim.profile import Profile
from collm.sim.report import RunLabels, SimReport, make_report, paper_goodput_per_s
from collm.sim.requests import sim_requests
from collm.sim.simulation import RunEnd, Simulation
from collm.workload.traces import Trace, load_trace
from collm.workload.transforms import clip_lengths, scale_time

MAX_REPLICA_DAYS = 10.0
"""Of observation, over all replicas: one trains between requests, quantum by quantum, and a day of
it takes some minutes.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """What every policy goes through."""

    profile: Profile
    config: SimConfig
    trace: str
    num_requests: int
    rate_per_s: float | None
    """``None`` keeps the trace's own."""
    divide_prompts: float
    divide_outputs: float
    with_regret: bool
    """Whether the oracle is run as well."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        options = {
            "--rate": self.rate_per_s,
            "--divide-prompts": self.divide_prompts,
            "--divide-outputs": self.divide_outputs,
        }
        for option, value in options.items():
            if value is not None and not 0.0 < value < math.inf:
                raise ConfigError(f"{option} is {value}; allowed is finite and above 0")


def run_simulated(run: SimulatedRun, policies: Sequence[Policy]) -> list[SimReport]:
    """Simulate policies on the same requests, and the oracle beside them where it is asked for.

    The oracle knows from the start what the best of the others end with; alone it knows what
    ``collm`` would end with.

    Raises:
        ConfigError, DataError: The trace or a setting cannot be used.
    """
    trace, how = shape_trace(run)
    learned = {
        policy.name: _simulate(run, policy, trace, None)
        for policy in policies
        if not policy.starts_final
    }
    oracle = None
    if run.with_regret or any(policy.starts_final for policy in policies):
        ends = learned or {"collm": _simulate(run, POLICIES["collm"], trace, None)}
        final = max((end.knowledge for _, end in ends.values()), key=sum)
        oracle = _simulate(run, POLICIES["oracle"], trace, final)
    goodput = paper_goodput_per_s(*oracle) if oracle is not None and run.with_regret else None
    reports = []
    for policy in policies:
        simulation, end = oracle if policy.starts_final and oracle else learned[policy.name]
        labels = RunLabels(
            policy=policy.name,
            profile=run.profile.name,
            profile_origin=run.profile.origin,
            seed=run.config.seed,
            trace=how,
        )
        reports.append(make_report(simulation, end, labels, goodput))
    return reports


def shape_trace(run: SimulatedRun) -> tuple[Trace, str]:
    """Return the rows to simulate, and in words how they were made.

    Raises:
        ConfigError: It would be longer than ``MAX_REPLICA_DAYS``.
        DataError: The trace cannot be read, or all its requests come at once.
    """
    rows = load_trace(run.trace)[: run.num_requests]
    if not rows or rows[0].arrived_at_s == rows[-1].arrived_at_s:
        raise DataError(f"{run.trace}: a simulation needs rows at two times at least")
    trace = tuple(
        replace(
            row,
            arrived_at_s=row.arrived_at_s - rows[0].arrived_at_s,
            prompt_tokens=max(1, round(row.prompt_tokens / run.divide_prompts)),
            output_tokens=max(1, round(row.output_tokens / run.divide_outputs)),
        )
        for row in rows
    )
    max_tokens = run.profile.max_model_len // 2
    trace = clip_lengths(trace, max_tokens, max_tokens)
    own_per_s = len(trace) / trace[-1].arrived_at_s
    rate_per_s = own_per_s if run.rate_per_s is None else run.rate_per_s
    days = len(trace) / rate_per_s / 86_400.0
    num_replicas = run.config.num_replicas
    if days * num_replicas > MAX_REPLICA_DAYS:
        raise ConfigError(
            f"{len(trace)} requests at {rate_per_s:.3g}/s take {days:.3g} days; allowed are at most"
            f" {MAX_REPLICA_DAYS / num_replicas:.3g} of {num_replicas} replicas: give fewer"
            " --requests or a higher --rate"
        )
    how = (
        f"{run.trace}, first {len(trace)} rows, {rate_per_s:.3g} requests/s,"
        f" prompts / {run.divide_prompts:g}, outputs / {run.divide_outputs:g}"
    )
    return scale_time(trace, own_per_s / rate_per_s), how


def _simulate(
    run: SimulatedRun, policy: Policy, trace: Trace, final: tuple[float, ...] | None
) -> tuple[Simulation, RunEnd]:
    simulation = Simulation(run.profile, policy, run.config, final=final)
    requests = sim_requests(trace, run.config.mix, run.config.seed)
    with waiting(f"simulating {policy.name}, {len(trace)} requests"):
        return simulation, simulation.run(requests, trace[-1].arrived_at_s)
