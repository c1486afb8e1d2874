"""Simulated clusters for tests: small, quick, on a stated profile."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from collm.metrics.records import RequestRecord
from collm.sim.config import SimConfig
from collm.sim.policies import find_policy
from collm.sim.profile import Profile, load_profile
from collm.sim.requests import SimRequest, sim_requests
from collm.sim.simulation import RunEnd, Simulation
from collm.workload.traces import Trace, TraceRow

PROFILE = "smollm2-135m-two-cores"


def profile(**changes: Any) -> Profile:
    """The CPU profile, with some fields changed."""
    return replace(load_profile(PROFILE), **changes)


def poisson(num_rows: int, per_s: float, seed: int = 0, max_tokens: int = 200) -> Trace:
    """Rows of drawn lengths at drawn times."""
    random, at_s, rows = Random(seed), 0.0, []
    for _ in range(num_rows):
        at_s += random.expovariate(per_s)
        rows.append(TraceRow(at_s, random.randint(1, max_tokens), random.randint(1, 60)))
    return tuple(rows)


def simulate(
    trace: Trace,
    policy: str = "collm",
    config: SimConfig | None = None,
    device: Profile | None = None,
    **parts: Any,
) -> tuple[Simulation, RunEnd, list[RequestRecord]]:
    """Run a policy on a trace; also return every request's record, in order of their ends."""
    config, records = config or SimConfig(), []
    simulation = Simulation(
        device or profile(), find_policy(policy), config, on_record=records.append, **parts
    )
    requests: Sequence[SimRequest] = list(sim_requests(trace, config.mix, config.seed))
    end = simulation.run(requests, trace[-1].arrived_at_s)
    return simulation, end, records
