from collections.abc import Sequence

import pytest

from collm.pacing.budgets import UncontrolledBudget
from collm.pacing.cost import QuantumCostModel
from collm.pacing.quanta import Quantum, QuantumKind, micro_batch_quanta, optimizer_quanta
from collm.types import SequenceProgress

MICRO_BATCH = micro_batch_quanta(4, 512, (64, 64), "tutor")
STEP = optimizer_quanta(2, 1_000, 1_000, "tutor")
LATE = SequenceProgress(
    arrived_at_s=0.0,
    num_output_tokens=3,
    num_remaining_prefill=1,
    num_context_tokens=8,
    last_token_at_s=1.0,
    is_running=True,
    first_token_at_s=0.5,
)
"""Its next token was due long before the pauses of these tests."""


class Messages:
    def __init__(self, *, are_waiting: bool) -> None:
        self._are_waiting = are_waiting

    def has_messages(self) -> bool:
        return self._are_waiting


NONE, WAITING = Messages(are_waiting=False), Messages(are_waiting=True)


def num_run_in_a_pause(
    budget: UncontrolledBudget,
    quanta: Sequence[Quantum],
    inbox: Messages,
    progress: tuple[SequenceProgress, ...] = (LATE,),
) -> int:
    budget.begin(progress, 100.0)
    for num_ran, quantum in enumerate(quanta):
        if not budget.allows(quantum, inbox):
            return num_ran
        budget.spent(quantum, 0.03, 100.0)
    return len(quanta)


@pytest.mark.parametrize("inbox", [NONE, WAITING])
def test_each_pause_runs_one_micro_batch_however_late_a_token_is(inbox: Messages) -> None:
    budget = UncontrolledBudget(QuantumCostModel())
    for _ in range(3):
        assert num_run_in_a_pause(budget, MICRO_BATCH * 2, inbox) == len(MICRO_BATCH)


def test_the_optimizer_step_belongs_to_the_micro_batch_before_it() -> None:
    budget = UncontrolledBudget(QuantumCostModel())
    quanta = (*MICRO_BATCH, *STEP, *MICRO_BATCH)
    assert num_run_in_a_pause(budget, quanta, NONE) == len(MICRO_BATCH) + len(STEP)


def test_with_nothing_to_serve_micro_batches_follow_each_other_until_a_message_waits() -> None:
    budget = UncontrolledBudget(QuantumCostModel())
    assert num_run_in_a_pause(budget, MICRO_BATCH * 3, NONE, ()) == 3 * len(MICRO_BATCH)
    assert num_run_in_a_pause(budget, MICRO_BATCH, WAITING, ()) == 0


def test_a_message_waits_for_the_end_of_the_micro_batch() -> None:
    budget = UncontrolledBudget(QuantumCostModel())
    budget.begin((), 100.0)
    budget.spent(MICRO_BATCH[0], 0.03, 100.0)
    assert all(budget.allows(quantum, WAITING) for quantum in MICRO_BATCH[1:])
    assert not budget.allows(MICRO_BATCH[0], WAITING)


def test_quanta_teach_the_cost_model() -> None:
    costs = QuantumCostModel()
    num_run_in_a_pause(UncontrolledBudget(costs), MICRO_BATCH, NONE)
    assert costs.calibration(QuantumKind.FORWARD).num_observed == 4
