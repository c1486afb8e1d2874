"""Rows of decodes that are counted, and snapshots that are not taken, change nothing."""

from dataclasses import replace
from operator import attrgetter

from hypothesis import given, settings
from hypothesis import strategies as st

from collm.engine.config import SchedulerConfig
from collm.pacing.config import PacingConfig
from collm.sim.config import RoundSettings, SimConfig
from collm.sim.faults import Fault
from collm.sim.requests import Mix
from collm.workload.traces import TraceRow
from factories.simulations import poisson, profile, simulate

FAULTS = (
    (),
    (Fault(replica=0, at_s=6.0, kind="dies"),),
    (Fault(replica=0, at_s=6.0, kind="silent", for_s=3.0),),
    (Fault(replica=0, at_s=6.0, kind="slow", factor=3.0),),
)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    per_s=st.sampled_from([0.5, 2.0, 6.0]),
    num_replicas=st.sampled_from([1, 2, 12]),
    policy=st.sampled_from(
        ["collm", "collm@fixed", "serve-only", "naive", "token-level", "time-slice"]
    ),
    budget=st.sampled_from(["latency", "objective"]),
    credit=st.sampled_from([0.0, 0.2]),
    costs=st.sampled_from(["learned", "given"]),
    num_blocks=st.sampled_from([40, 2_000]),
    has_delays=st.booleans(),
    has_rounds=st.booleans(),
    drift_at_s=st.sampled_from([None, 7.1]),
    faults=st.sampled_from(FAULTS),
)
def test_fast_forward_gives_identical_records(
    seed, per_s, num_replicas, policy, budget, credit, costs, num_blocks, has_delays, has_rounds,
    drift_at_s, faults,
):  # fmt: skip
    trace = poisson(40, per_s, seed)
    delays = {} if has_delays else {"loop_s": 0.0, "request_s": 0.0}
    device = profile(num_blocks=num_blocks, reload_s=1.0, **delays)
    config = SimConfig(
        num_replicas=num_replicas,
        seed=seed,
        pacing=PacingConfig(budget=budget, credit_share=credit),
        scheduler=SchedulerConfig(max_running=6),
        costs=costs,
        mix=Mix(drift_at_s=drift_at_s),
        rounds=RoundSettings(tokens_per_round=1_000) if has_rounds else None,
        faults=faults,
    )
    plain = simulate(trace, policy, replace(config, fast_forward=False), device)
    quick = simulate(trace, policy, replace(config, fast_forward=True), device)
    assert sorted(quick[2], key=attrgetter("request_id")) == sorted(
        plain[2], key=attrgetter("request_id")
    )
    assert quick[1] == plain[1]


def test_fast_forward_serves_on_after_a_turn_of_training():
    """Answers that are under way at the end of a turn go on in the next one, by rows."""
    trace = (TraceRow(118.0, 20, 150), TraceRow(118.5, 20, 150))
    runs = [
        simulate(trace, "time-slice", SimConfig(costs="given", fast_forward=fast_forward))
        for fast_forward in (False, True)
    ]
    (first, second), quick = runs[0][2], runs[1][2]
    assert min(first.max_gap_s, second.max_gap_s) > 100.0
    assert first.outcome == second.outcome == "completed"
    assert quick == [first, second]


def test_a_turn_that_ends_between_two_polls_is_seen_by_the_next_one():
    """Polls are sums of 0.2 s, and the border at 120 s falls a little before one of them."""
    trace = (TraceRow(1.0, 20, 5), TraceRow(120.05, 20, 5), TraceRow(120.15, 20, 5))
    runs = [
        simulate(trace, "time-slice", SimConfig(num_replicas=2, fast_forward=fast_forward))
        for fast_forward in (False, True)
    ]
    assert runs[1][2] == runs[0][2]
    assert runs[1][1] == runs[0][1]
