"""What a simulated cluster does as a whole."""

import math
from dataclasses import replace

import pytest

from collm.cluster.planning.estimates import LearnedEstimates
from collm.cluster.planning_config import PlanningConfig
from collm.cluster.round_config import ROUND_GATE
from collm.errors import ConfigError
from collm.federated.rounds import RoundStatus
from collm.gate.config import GateConfig
from collm.pacing.config import PacingConfig
from collm.sim.config import RoundSettings, SimConfig
from collm.sim.faults import Fault
from collm.sim.planning import Deliberation
from collm.sim.policies import POLICIES
from collm.sim.report import RunLabels, make_report
from collm.sim.requests import Mix
from collm.workload.traces import TraceRow
from factories.simulations import poisson, profile, simulate

LIGHT = poisson(60, 1.0)


def report_of(simulation, end):
    labels = RunLabels(policy="p", profile="d", profile_origin="stated", seed=0, trace="t")
    return make_report(simulation, end, labels)


def test_lone_request_takes_the_time_that_the_profile_says() -> None:
    device = profile(step_ratios=(1.0,), loop_s=0.0, request_s=0.01)
    simulation, _, records = simulate((TraceRow(1.0, 50, 3),), "serve-only", None, device)
    step = device.step
    adapted_s = step.constant_s + step.adapter_s
    prefill_s = adapted_s + 50 * (step.prefill_s + step.context_s)
    decodes_s = 2 * (adapted_s + step.decode_s) + (51 + 52) * step.context_s
    (record,) = records
    assert record.ttft_s == pytest.approx(0.01 + prefill_s)
    assert record.last_token_at_s == pytest.approx(1.01 + prefill_s + decodes_s)
    assert record.num_output_tokens == 3
    assert simulation.tallies["replica-0"].num_met == 1


def test_slower_replica_takes_its_times_as_long_for_serving_and_learning() -> None:
    device = profile(step_ratios=(1.0,), loop_s=0.0, request_s=0.0)
    _, _, (record,) = simulate((TraceRow(1.0, 50, 3),), "serve-only", None, device)
    slow = SimConfig(slowness=(2.0,))
    _, _, (slower,) = simulate((TraceRow(1.0, 50, 3),), "serve-only", slow, device)
    assert slower.ttft_s == pytest.approx(2.0 * record.ttft_s)
    assert slower.tpot_s == pytest.approx(2.0 * record.tpot_s)
    trained, less = (
        sum(simulate(poisson(4, 0.1), "collm", config, device)[1].training_tokens.values())
        for config in (SimConfig(), slow)
    )
    assert less == pytest.approx(trained / 2.0, rel=0.1)


@pytest.mark.parametrize("slowness", [(1.0,), (1.0, 0.0), (1.0, math.nan)])
def test_slowness_is_refused_unless_above_zero_and_of_each_replica(slowness) -> None:
    with pytest.raises(ConfigError, match="slowness"):
        SimConfig(num_replicas=2, slowness=slowness)


def test_every_request_ends_once_and_with_its_tokens() -> None:
    _, _, records = simulate(LIGHT, config=SimConfig(num_replicas=3))
    by_id = sorted(records, key=lambda record: record.request_id)
    assert [one.num_output_tokens for one in by_id] == [row.output_tokens for row in LIGHT]
    assert {one.outcome for one in records} == {"completed"}


def test_same_seed_gives_the_same_run_bit_for_bit_and_another_one_another() -> None:
    config = SimConfig(num_replicas=3, rounds=RoundSettings(tokens_per_round=2_000))
    first, second = (simulate(LIGHT, config=config)[1:] for _ in range(2))
    assert first == second
    other = SimConfig(num_replicas=3, seed=1, rounds=RoundSettings(tokens_per_round=2_000))
    assert simulate(LIGHT, config=other)[2] != first[1]


def test_training_takes_idle_time_and_leaves_the_objectives_alone() -> None:
    config = SimConfig(warm_tokens=1_000.0)
    _, end, records = simulate(LIGHT, "collm", config)
    _, bare, served = simulate(LIGHT, "serve-only", config)
    assert end.training_tokens["replica-0"] > 5_000
    assert bare.training_tokens["replica-0"] == 0
    objectives = PacingConfig()
    num_met = sum(one.met(objectives) for one in records)
    assert num_met >= sum(one.met(objectives) for one in served) - 1


def test_adapter_gets_better_and_later_requests_are_served_by_it() -> None:
    trace = poisson(150, 1.0)
    simulation, end, records = simulate(trace, "collm", SimConfig(warm_tokens=500.0))
    assert simulation.replicas["replica-0"].learner.num_promotions >= 1
    assert end.knowledge[0] > 500.0
    by_arrival = sorted(records, key=lambda one: one.arrived_at_s)
    assert by_arrival[0].versions == ("adapter@0",)
    assert by_arrival[-1].versions != ("adapter@0",)


def test_uncontrolled_training_costs_what_pacing_protects() -> None:
    trace = poisson(150, 2.0)
    shares = {
        name: simulate(trace, name)[0].tallies["replica-0"].attainment.share
        for name in ("collm", "naive", "serve-only")
    }
    assert shares["naive"] < shares["collm"] - 0.1
    assert shares["collm"] > shares["serve-only"] - 0.05


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "oracle"])
def test_every_policy_serves_all_requests_of_a_light_load_and_says_what_it_is(name) -> None:
    config = SimConfig(num_replicas=4, rounds=RoundSettings(tokens_per_round=2_000))
    simulation, end, records = simulate(LIGHT, name, config)
    assert len(records) == len(LIGHT)
    report = report_of(simulation, end)
    assert report.is_simulated
    assert report.num_requests == len(LIGHT)
    assert POLICIES[name].models.endswith(".")
    assert POLICIES[name].leaves_out.endswith(".")
    assert (report.training_tokens > 0) == POLICIES[name].learns


def test_oracle_needs_what_it_knows_and_serves_it_from_the_start() -> None:
    with pytest.raises(ConfigError, match="oracle"):
        simulate(LIGHT, "oracle")
    simulation, end, _ = simulate(LIGHT, "oracle", final=(50_000.0,))
    cold, cold_end, _ = simulate(LIGHT, "serve-only")
    assert report_of(simulation, end).quality > report_of(cold, cold_end).quality


def test_only_serving_replicas_of_a_split_cluster_get_requests() -> None:
    simulation, end, _ = simulate(LIGHT, "split", SimConfig(num_replicas=4))
    counts = {name: sum(one.outcomes.values()) for name, one in simulation.tallies.items()}
    assert counts["replica-0"] == 0
    assert sum(counts.values()) == len(LIGHT)
    assert end.training_tokens["replica-0"] > 0
    assert end.training_tokens["replica-1"] == 0


def test_rounds_add_up_what_members_learned_on_their_own_domains() -> None:
    config = SimConfig(
        num_replicas=2, mix=Mix(num_domains=2), rounds=RoundSettings(tokens_per_round=3_000)
    )
    simulation, end, _ = simulate(poisson(150, 1.0), "collm", config)
    assert simulation.rounds is not None
    assert simulation.rounds.outcomes[RoundStatus.DONE] >= 2
    # Each member trains on one domain alone, and both are served everywhere.
    assert min(end.knowledge) > 3_000.0
    versions = {one.learner.versions.active.version for one in simulation.replicas.values()}
    assert versions == {simulation.rounds.active.version}


def test_members_share_the_samples_that_an_aggregate_is_judged_by() -> None:
    device = profile()  # without evaluations between rounds
    device = replace(device, training=replace(device.training, evaluate_every=10**9))

    def judging_s(gate):
        # One round, over long before the end: what is still judged then would count in part.
        rounds = RoundSettings(tokens_per_round=2_000, gate=gate, interval_s=1e9)
        config = SimConfig(num_replicas=4, mix=Mix(num_domains=4), rounds=rounds)
        simulation, end, _ = simulate(LIGHT, "collm", config, device)
        assert simulation.rounds is not None
        assert sum(simulation.rounds.outcomes.values()) == 1
        return sum(one["evaluate"] for one in end.seconds.values())

    shared, alone = judging_s(ROUND_GATE), judging_s(GateConfig(max_samples=256))
    assert shared == pytest.approx(0.5 * alone, rel=0.01)  # times are drawn, of 124 quanta or more


def test_round_that_ends_by_its_deadline_in_the_midst_of_steps_is_judged_and_done() -> None:
    rounds = RoundSettings(tokens_per_round=10**9, deadline_s=20.0)
    config = SimConfig(num_replicas=2, rounds=rounds)
    # Steps of many micro-batches: the deadline finds each member half-way through one.
    device = profile()
    device = replace(device, training=replace(device.training, tokens_per_step=4_000))
    simulation, _, _ = simulate(poisson(120, 1.0), "collm", config, device)
    assert simulation.rounds is not None
    assert simulation.rounds.outcomes[RoundStatus.DONE] >= 2
    assert RoundStatus.ABANDONED not in simulation.rounds.outcomes


def test_drift_lowers_quality_until_the_new_domain_is_learned() -> None:
    def quality(drift_at_s):
        mix = Mix(num_domains=1, drift_at_s=drift_at_s)
        config = SimConfig(mix=mix, warm_tokens=20_000.0)
        return report_of(*simulate(LIGHT, "serve-only", config)[:2]).quality

    assert quality(20.0) < quality(None)


def test_requests_of_a_replica_that_dies_are_answered_elsewhere_unless_they_had_begun() -> None:
    faults = (Fault(replica=0, at_s=20.0, kind="dies"),)
    simulation, _, records = simulate(
        poisson(80, 2.0), config=SimConfig(num_replicas=2, faults=faults)
    )
    failed = [one for one in records if one.outcome == "failed"]
    assert len(records) == 80
    assert all(one.first_token_at_s is not None for one in failed)
    late = [one for one in records if one.arrived_at_s > 20.0]
    assert {one.outcome for one in late} == {"completed"}
    assert simulation.tallies["replica-1"].num_ended > simulation.tallies["replica-0"].num_ended


def test_silent_replica_gets_nothing_after_a_second() -> None:
    faults = (Fault(replica=0, at_s=10.0, kind="silent", for_s=20.0),)
    _, _, records = simulate(
        poisson(120, 5.0), "serve-only", config=SimConfig(num_replicas=2, faults=faults)
    )
    stalled = [one for one in records if (one.latency_s or 0.0) > 10.0]
    assert stalled  # those that it had begun, or was sent before anybody noticed
    assert all(one.arrived_at_s < 11.3 for one in stalled)
    assert max(one.latency_s or 0.0 for one in records if one not in stalled) < 10.0


def test_slow_replica_gets_fewer_requests_from_the_router() -> None:
    faults = (Fault(replica=0, at_s=0.0, kind="slow", factor=4.0),)
    config = SimConfig(num_replicas=2, faults=faults)
    simulation, _, _ = simulate(poisson(150, 3.0), "serve-only", config)
    counts = {name: sum(one.outcomes.values()) for name, one in simulation.tallies.items()}
    assert counts["replica-0"] < 0.6 * counts["replica-1"]


class Recorder(LearnedEstimates):
    """Estimates that keep what they saw."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.seen: list[dict] = []

    def look(self, live, now_s) -> None:
        self.seen.append(dict(live))
        super().look(live, now_s)


def planned(**changes) -> SimConfig:
    planning = PlanningConfig(policy="adaptive", period_s=10.0, valid_s=100.0, max_credit_share=0.3)
    return SimConfig(num_replicas=2, planning=planning, **changes)


def test_planner_looks_at_totals_and_its_allocation_is_followed() -> None:
    made: list[Recorder] = []

    def make(config):
        made.append(Recorder(config))
        return made[-1]

    deliberation = Deliberation(make_estimates=make)
    simulation, _, records = simulate(LIGHT, "collm", planned(), deliberation=deliberation)
    assert simulation.planner is not None
    assert simulation.planner.decision is not None
    allocation = simulation.planner.decision.allocation
    assert set(allocation.traffic["adapter"]) == {"replica-0", "replica-1"}
    for name, replica in simulation.replicas.items():
        grant = allocation.grants[name]["adapter"]
        assert replica.learner.trainer.tokens_per_step == grant.batch_tokens
        assert replica.snapshot(1e9).credit_share <= grant.credit_share
    assert len(made[0].seen) > 40
    totals = [one.totals.adapters["adapter"] for one in made[0].seen[-1].values()]
    assert sum(one.num_arrived for one in totals) == len(records)
    assert all(one.training_s > one.evaluation_s > 0.0 for one in totals)
    assert all(one.num_trained_tokens > 0 for one in totals)
    busy_s = [one.totals.serve_s + one.totals.train_s for one in made[0].seen[-1].values()]
    assert all(0.0 < one <= LIGHT[-1].arrived_at_s for one in busy_s)


def test_planner_learns_from_what_replicas_measured_of_their_learning() -> None:
    rounds = RoundSettings(tokens_per_round=2_000)
    simulation, _, _ = simulate(poisson(120, 1.0), "collm", planned(rounds=rounds))
    decision = simulation.planner.decision
    # A curve of measured points, not the prior: what replicas start with is known to it.
    curve = decision.problem.adapters["adapter"].curve
    assert curve.num_points >= 4
    trainer = simulation.replicas["replica-0"].learner.trainer
    assert curve.loss_now == pytest.approx(trainer.loss_of(trainer.knowledge, 0.0), rel=0.25)
    assert decision.allocation.objective.learning > 0.0


def test_no_planner_plans_for_a_policy_without_coordination() -> None:
    config = SimConfig(num_replicas=2, planning=PlanningConfig(policy="adaptive"))
    assert simulate(LIGHT, "collm@fixed", config)[0].planner is None


def test_records_of_all_replicas_come_in_the_order_in_which_requests_ended() -> None:
    _, _, records = simulate(poisson(120, 6.0), config=SimConfig(num_replicas=3))
    ends = [one.ended_at_s for one in records]
    assert ends == sorted(ends)


@pytest.mark.parametrize("rounds", [None, RoundSettings(tokens_per_round=2_000)])
def test_what_replicas_do_after_the_observation_counts_for_their_answers_alone(rounds) -> None:
    """Also where those without requests stand still: a drain that goes on says the same."""
    config = SimConfig(num_replicas=3, rounds=rounds, warm_tokens=500.0)
    # A fault after the drain concerns nobody, but everything has to go on until then.
    faults = (Fault(replica=0, at_s=10_000.0, kind="dies"),)
    simulation, end, records = simulate(poisson(100, 4.0), config=config)
    _, other_end, others = simulate(poisson(100, 4.0), config=replace(config, faults=faults))
    assert records == others
    assert end == other_end
    assert report_of(simulation, end).num_promotions == end.num_promotions
