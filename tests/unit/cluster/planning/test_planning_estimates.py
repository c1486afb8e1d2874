"""From snapshots alone to a problem that the allocator can solve."""

import pytest

from collm.cluster.planning.allocator import Allocator
from collm.cluster.planning.estimates import LearnedEstimates
from collm.cluster.planning_config import PlanningConfig
from collm.types import AdapterTotals, Evaluation, LearningState, ReplicaTotals, StepCoefficients
from factories.snapshots import ADAPTER, BASE_MODEL, COEFFICIENTS, make_snapshot

CONFIG = PlanningConfig(policy="adaptive", period_s=60.0, max_credit_share=0.3)
FAST = StepCoefficients(
    constant_s=0.01, decode_s=0.001, prefill_s=0.0005, context_s=0.0, adapter_s=0.0
)


class Fleet:
    """Replicas that serve and train at steady rates."""

    def __init__(self, *names, is_joint=True, **costs):
        self.estimates = LearnedEstimates(CONFIG)
        self.names = list(names)
        self.is_joint = is_joint
        self.costs = costs
        self.now_s = 0.0
        self.done = dict.fromkeys(names, AdapterTotals())
        self.started_s = dict.fromkeys(names, 0.0)

    def live(self, **changes):
        return {name: self.snapshot(name, **changes) for name in self.names}

    def snapshot(self, name, **changes):
        done = self.done[name]
        evaluation = None
        if done.num_trained_tokens:
            loss = 50.0 * (done.num_trained_tokens + 1_000.0) ** -0.5
            evaluation = Evaluation(num_tokens=done.num_trained_tokens, loss=loss, num_samples=20)
        values = {
            "taken_at_s": self.now_s,
            "step_coefficients": self.costs.get(name, COEFFICIENTS),
            "totals": ReplicaTotals(
                serve_s=0.3 * (self.now_s - self.started_s[name]),
                train_s=0.7 * (self.now_s - self.started_s[name]),
                adapters={ADAPTER: done},
            ),
            "learning": {
                ADAPTER: LearningState(
                    tokens_per_step=512,
                    micro_batch_tokens=256,
                    is_joint=self.is_joint,
                    evaluation=evaluation,
                )
            },
        }
        return make_snapshot(name, **(values | changes))

    def pass_period(self, num_arrived=60, tokens=5_120, **changes):
        for _ in range(6):
            self.estimates.look(self.live(**changes), self.now_s)
            self.now_s += 10.0
            for name in self.names:
                self.done[name] = self._more(self.done[name], num_arrived // 6, tokens // 6)
        self.estimates.look(self.live(**changes), self.now_s)
        return self.estimates.problem(self.live(**changes), self.now_s)

    @staticmethod
    def _more(done, num_arrived, tokens):
        return AdapterTotals(
            num_arrived=done.num_arrived + num_arrived,
            num_ended=done.num_ended + num_arrived,
            num_met=done.num_met + num_arrived,
            num_prompt_tokens=done.num_prompt_tokens + 50 * num_arrived,
            num_output_tokens=done.num_output_tokens + 20 * num_arrived,
            training_s=done.training_s + tokens / 400.0,
            num_trained_tokens=done.num_trained_tokens + tokens,
            num_steps=done.num_steps + tokens // 512,
        )


def test_the_first_problem_has_an_answer_though_nothing_is_known():
    estimates = LearnedEstimates(CONFIG)
    live = {"r0": make_snapshot("r0"), "r1": make_snapshot("r1")}
    case = estimates.problem(live, 0.0)
    assert all(terms.attainment is None for terms in case.replicas.values())
    allocation = Allocator().solve(case)
    assert allocation.traffic[ADAPTER] == {"r0": 0.5, "r1": 0.5}
    assert allocation.grants == {}


def test_nobody_live_is_an_empty_problem():
    case = LearnedEstimates(CONFIG).problem({}, 0.0)
    assert case.replicas == {}
    assert Allocator().solve(case).traffic == {}


def test_what_arrives_where_it_is_served_and_who_trains_are_in_the_problem():
    fleet = Fleet("r0", "r1")
    for _ in range(5):
        case = fleet.pass_period()
    assert case.adapters[ADAPTER].arrivals_per_s == pytest.approx(2.0, rel=0.01)
    assert case.adapters[BASE_MODEL].arrivals_per_s == 0.0
    assert case.adapters[BASE_MODEL].curve is None
    assert set(case.pairs) == {(name, one) for name in fleet.names for one in (ADAPTER, BASE_MODEL)}
    training = case.pairs["r0", ADAPTER].training
    assert training is not None
    assert training.throughput.tokens_per_s(512) == pytest.approx(400.0, rel=0.1)
    assert case.pairs["r0", BASE_MODEL].training is None


def test_training_is_bought_where_it_pays():
    fleet = Fleet("r0", "r1")
    for _ in range(6):
        case = fleet.pass_period(num_arrived=12)
    allocation = Allocator().solve(case)
    for name in fleet.names:
        grant = allocation.grants[name][ADAPTER]
        assert grant.time_share == 1.0
        assert grant.expected_tokens > 1_000.0
        assert grant.batch_tokens in case.adapters[ADAPTER].batch_choices
    assert allocation.objective.learning > 0.0
    assert allocation.members[ADAPTER] == ("r0", "r1")


def test_training_goes_on_when_nothing_arrives():
    fleet = Fleet("r0")
    for _ in range(4):
        case = fleet.pass_period(num_arrived=0)
    assert case.adapters[ADAPTER].arrivals_per_s == 0.0
    assert Allocator().solve(case).objective.learning > 0.0


def test_faster_replica_gets_more_of_the_traffic():
    fleet = Fleet("slow", "fast", fast=FAST)
    for _ in range(4):
        case = fleet.pass_period(num_arrived=180)
    shares = Allocator().solve(case).traffic[ADAPTER]
    assert shares["fast"] > shares["slow"]


def test_a_replica_that_joins_keeps_its_part_and_trains_as_it_can():
    fleet = Fleet("r0")
    for _ in range(3):
        fleet.pass_period()
    fleet.names.append("r1")
    fleet.done["r1"], fleet.started_s["r1"] = AdapterTotals(), fleet.now_s
    case = fleet.estimates.problem(fleet.live(), fleet.now_s)
    assert case.replicas["r1"].attainment is None
    assert case.replicas["r0"].attainment is not None
    assert Allocator().solve(case).traffic[ADAPTER]["r1"] > 0.0
    assert fleet.pass_period().replicas["r1"].attainment is not None


def test_a_replica_that_dies_is_out_and_what_it_saw_still_counts():
    fleet = Fleet("r0", "r1")
    for _ in range(3):
        fleet.pass_period()
    fleet.names.remove("r1")
    case = fleet.pass_period()
    assert set(case.replicas) == {"r0"}
    assert case.adapters[ADAPTER].arrivals_per_s > 1.0


def test_a_draining_replica_gets_nothing():
    fleet = Fleet("r0")
    assert fleet.pass_period(is_draining=True).replicas == {}


def test_a_paused_job_is_not_planned_with():
    case = Fleet("r0").pass_period(learning={})
    assert case.pairs["r0", ADAPTER].training is None
    assert case.adapters[ADAPTER].curve is None


def test_equal_histories_make_equal_problems():
    def answer():
        fleet = Fleet("r0", "r1", r1=FAST)
        for _ in range(4):
            case = fleet.pass_period()
        return Allocator().solve(case)

    assert answer() == answer()
