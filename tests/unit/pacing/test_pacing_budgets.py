import pytest

from collm.clock import ManualClock
from collm.pacing.budgets import (
    Budget,
    LatencyBudget,
    ObjectiveBudget,
    UncontrolledBudget,
    make_budget,
)
from collm.pacing.config import BudgetName, Objectives, PacingConfig
from collm.pacing.cost import QuantumCostModel, StepCostModel
from collm.pacing.credit import Credit
from collm.pacing.deadlines import StepCost
from collm.pacing.quanta import Quantum, QuantumKind
from collm.types import SequenceProgress, StepLoad

OBJECTIVES = Objectives(ttft_s=0.8, tpot_s=0.1, max_itl_s=0.2)
QUANTUM = Quantum(QuantumKind.FORWARD, 512)
QUANTUM_S = 0.03
STEP_S = 0.04


class FixedCost:
    def upper_s(self, load: StepLoad) -> float:
        return STEP_S


class PromptCost:
    def upper_s(self, load: StepLoad) -> float:
        return STEP_S + 0.001 * load.num_prefill_tokens


class FakeInbox:
    def __init__(self, *, has_messages: bool = False) -> None:
        self._has_messages = has_messages

    def has_messages(self) -> bool:
        return self._has_messages


class FixedQuantumCost(QuantumCostModel):
    """Real bookkeeping, with a bound that a table can be written for."""

    def __init__(self) -> None:
        super().__init__()
        self.bound_s = QUANTUM_S

    def upper_s(self, quantum: Quantum) -> float:
        return self.bound_s


EMPTY, FULL = FakeInbox(), FakeInbox(has_messages=True)


class Bench:
    """A budget with its clock; the first token of ``decoding`` came at 0, the latest just now."""

    def __init__(
        self, kind: type[ObjectiveBudget], share: float = 0.0, cost: StepCost | None = None
    ) -> None:
        self.clock = ManualClock(10.0)
        self.costs = FixedQuantumCost()
        self.credit = Credit(share, burst_s=0.5)
        self.budget = kind(
            OBJECTIVES,
            cost or FixedCost(),
            self.costs,
            prefill_limit=None,
            credit=self.credit,
            max_quantum_s=0.04,
        )
        self._ran_once()

    def _ran_once(self) -> None:
        """Leave the start-up state, in which an unmeasured quantum may probe."""
        self.budget.begin((), self.clock.now_s())
        self.run()

    def run(self, seconds: float = QUANTUM_S) -> None:
        self.clock.advance(seconds)
        self.budget.spent(QUANTUM, seconds, self.clock.now_s())

    def begin(self, *progress: SequenceProgress, is_blocked: bool = False) -> None:
        self.budget.begin(progress, self.clock.now_s(), is_blocked=is_blocked)

    def decoding(self, slack_s: float, since_token_s: float = 0.0) -> SequenceProgress:
        """Return a sequence that can do without ``slack_s`` before its next step starts."""
        now_s = self.clock.now_s()
        return SequenceProgress(
            arrived_at_s=0.0,
            num_output_tokens=1,
            num_remaining_prefill=1,
            num_context_tokens=8,
            last_token_at_s=now_s - since_token_s,
            is_running=True,
            first_token_at_s=now_s + slack_s + STEP_S - OBJECTIVES.tpot_s,
        )

    def waiting(self) -> SequenceProgress:
        return SequenceProgress(
            arrived_at_s=self.clock.now_s(),
            num_output_tokens=0,
            num_remaining_prefill=20,
            num_context_tokens=0,
            last_token_at_s=None,
            is_running=False,
        )

    def count(self, limit: int = 50) -> int:
        """Run quanta while they are allowed; return how many ran."""
        for num_ran in range(limit):
            if not self.budget.allows(QUANTUM, EMPTY):
                return num_ran
            self.run()
        return limit


BOTH = pytest.mark.parametrize("kind", [LatencyBudget, ObjectiveBudget])


@BOTH
def test_with_nothing_to_serve_quanta_run_until_a_message_waits(
    kind: type[ObjectiveBudget],
) -> None:
    bench = Bench(kind)
    bench.begin()
    assert bench.count(limit=20) == 20
    assert not bench.budget.allows(QUANTUM, FULL)


@BOTH
def test_a_waiting_message_stops_quanta_whatever_the_slack(kind: type[ObjectiveBudget]) -> None:
    bench = Bench(kind, share=1.0)
    bench.clock.advance(10.0)
    bench.begin(bench.decoding(slack_s=5.0))
    assert not bench.budget.allows(QUANTUM, FULL)


@pytest.mark.parametrize("owed", [QuantumKind.SNAPSHOT, QuantumKind.REBASE])
@BOTH
def test_one_owed_quantum_runs_per_pause_whatever_waits(
    kind: type[ObjectiveBudget], owed: QuantumKind
) -> None:
    bench = Bench(kind)
    piece = Quantum(owed, 1_000)
    for _ in range(3):
        bench.begin(bench.decoding(slack_s=0.0), bench.waiting())
        assert not bench.budget.allows(QUANTUM, EMPTY)
        assert bench.budget.allows(piece, FULL)
        bench.budget.spent(piece, 0.01, bench.clock.now_s())
        assert not bench.budget.allows(piece, EMPTY)


@pytest.mark.parametrize(
    ("slack_s", "since_token_s", "num_latency", "num_objective"),
    [
        (0.010, 0.00, 0, 0),  # no quantum of 30 ms fits
        (0.031, 0.00, 1, 1),
        (0.095, 0.00, 1, 3),
        (0.500, 0.00, 1, 4),  # gap: four of 30 ms + a step of 40 ms <= four fifths of 200 ms
        (0.500, 0.06, 1, 2),
        (0.500, 0.10, 0, 0),
    ],
)
def test_number_of_quanta_beside_a_decoding_sequence(
    slack_s: float, since_token_s: float, num_latency: int, num_objective: int
) -> None:
    for kind, expected in ((LatencyBudget, num_latency), (ObjectiveBudget, num_objective)):
        bench = Bench(kind)
        bench.begin(bench.decoding(slack_s, since_token_s))
        assert bench.count() == expected


@BOTH
def test_no_quantum_runs_on_slack_while_prefill_is_due(kind: type[ObjectiveBudget]) -> None:
    bench = Bench(kind)
    bench.begin(bench.waiting())
    assert bench.count() == 0
    bench.begin(bench.decoding(slack_s=0.5), bench.waiting())
    assert bench.count() == 0


@BOTH
def test_what_waits_for_room_does_not_keep_training_from_its_slack(
    kind: type[ObjectiveBudget],
) -> None:
    bench = Bench(kind)
    bench.begin(bench.decoding(slack_s=0.5), bench.waiting(), is_blocked=True)
    assert bench.count() >= 1


@BOTH
def test_credit_pays_while_prefill_is_due(kind: type[ObjectiveBudget]) -> None:
    bench = Bench(kind, share=0.1)
    bench.clock.advance(1.0)  # earns 100 ms
    bench.begin(bench.waiting())
    assert bench.count() == 3


@pytest.mark.parametrize(("ahead_s", "num_quanta"), [(0.1, 0), (1.59, 0), (1.65, 1)])
@BOTH
def test_a_decode_gets_ahead_first_where_a_long_prompt_would_come_too_late(
    kind: type[ObjectiveBudget], ahead_s: float, num_quanta: int
) -> None:
    bench = Bench(kind, cost=PromptCost())
    long_prompt = bench.waiting()._replace(num_remaining_prefill=600)
    bench.begin(long_prompt)
    bench.begin(bench.decoding(slack_s=ahead_s))
    assert bench.count(limit=1) == num_quanta


def test_each_step_allows_the_next_quantum() -> None:
    bench = Bench(LatencyBudget)
    for _ in range(5):
        bench.begin(bench.decoding(slack_s=0.5))
        assert bench.count() == 1


def test_short_quanta_fill_the_time_of_one_longest() -> None:
    bench = Bench(LatencyBudget)
    bench.costs.bound_s = 0.009
    bench.begin(bench.decoding(slack_s=0.5))
    num_ran = 0
    while bench.budget.allows(QUANTUM, EMPTY):
        bench.run(0.008)
        num_ran += 1
    assert num_ran == 4  # 4 * 8 ms, and another bounded by 9 ms would pass 40 ms


@BOTH
def test_a_late_request_does_not_freeze_training(kind: type[ObjectiveBudget]) -> None:
    bench = Bench(kind)
    num_ran = 0
    late = bench.decoding(slack_s=-7.03)
    for _ in range(20):  # each step sends one token, whose deadline was seven seconds ago
        bench.begin(late)
        num_ran += bench.count()
        bench.clock.advance(STEP_S)
        late = late._replace(
            num_output_tokens=late.num_output_tokens + 1,
            last_token_at_s=bench.clock.now_s(),
        )
    assert num_ran >= 10


@BOTH
def test_credit_runs_quanta_that_slack_does_not_cover(kind: type[ObjectiveBudget]) -> None:
    bench = Bench(kind, share=0.1)
    bench.clock.advance(1.0)  # earns 100 ms
    bench.begin(bench.decoding(slack_s=0.0))
    assert bench.count() == 3


@BOTH
def test_free_quanta_cost_no_credit(kind: type[ObjectiveBudget]) -> None:
    bench = Bench(kind, share=0.1)
    bench.clock.advance(1.0)
    bench.begin(bench.decoding(slack_s=0.05))
    before_s = bench.credit.balance_s
    bench.run()
    assert bench.credit.balance_s >= before_s
    bench.run()
    assert bench.credit.balance_s < before_s


@BOTH
def test_credit_keeps_the_gap_rule_but_for_one_quantum_a_pause(
    kind: type[ObjectiveBudget],
) -> None:
    bench = Bench(kind, share=1.0)
    bench.clock.advance(1.0)
    bench.begin(bench.decoding(slack_s=0.0, since_token_s=0.19))
    assert bench.count() == 1


@BOTH
def test_misses_take_credit_away(kind: type[ObjectiveBudget]) -> None:
    bench = Bench(kind, share=0.1)
    bench.clock.advance(1.0)
    for _ in range(5):
        bench.credit.missed()
    bench.begin(bench.decoding(slack_s=0.0))
    assert bench.count() == 0


@BOTH
def test_a_stale_bound_is_measured_again_after_a_second(kind: type[ObjectiveBudget]) -> None:
    bench = Bench(kind)
    bench.costs.bound_s = 2.0
    bench.clock.advance(0.9)
    bench.begin(bench.decoding(slack_s=0.06))
    assert bench.count() == 0
    bench.clock.advance(0.2)
    bench.begin(bench.decoding(slack_s=0.06))
    assert bench.count() == 1
    bench.clock.advance(1.1)
    bench.begin(bench.decoding(slack_s=0.03))  # less than a quantum may take: no probe
    assert bench.count() == 0


def test_spent_quanta_teach_the_cost_model() -> None:
    bench = Bench(LatencyBudget)
    for _ in range(9):
        bench.run()
    assert bench.costs.calibration(QuantumKind.FORWARD).num_observed == 10
    assert bench.costs.predict_s(QUANTUM) == pytest.approx(QUANTUM_S, rel=0.01)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("latency", LatencyBudget),
        ("objective", ObjectiveBudget),
        ("uncontrolled", UncontrolledBudget),
    ],
)
def test_configuration_names_the_budget(name: BudgetName, kind: type[Budget]) -> None:
    config = PacingConfig(budget=name)
    budget = make_budget(config, StepCostModel(), QuantumCostModel(), Credit())
    assert type(budget) is kind
