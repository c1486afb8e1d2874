"""Rows of plain decodes, computed one number at a time instead of one sequence at a time."""

from collm.engine.sequence import Sequence
from collm.engine.stretch import Stretch
from collm.pacing.budgets import Budget
from collm.pacing.config import Objectives
from collm.pacing.deadlines import Outlook, StepCost, look_ahead_decoding
from collm.sim.log import SimLog
from collm.types import BASE_SLOT, StepLoad


class DecodeRow:
    """How far a stretch of decodes is; the scheduler and the log are told by ``settle``.

    Args:
        stretch: The steps that are sure.
        token_id: What every sequence gets.
        objectives: What deadlines are made from.
    """

    def __init__(self, stretch: Stretch, token_id: int, objectives: Objectives) -> None:
        sequences, tpot_s = stretch.sequences, objectives.tpot_s
        self.stretch = stretch
        """The steps that are sure."""
        self._token_id = token_id
        self._objectives = objectives
        tokens = [(_first_s(one), one.num_output_tokens) for one in sequences]
        # In order of deadlines, which every step moves alike.
        self._first_tokens = sorted(tokens, key=lambda one: one[0] + one[1] * tpot_s)
        self.num_sequences = len(sequences)
        self.num_adapters = len(
            {one.binding.slot for one in sequences if one.binding} - {BASE_SLOT}
        )
        self.num_context_tokens = stretch.num_context_tokens
        """Keys that are computed by now."""
        self.num_done = 0
        self.num_left = stretch.num_steps
        """Steps of the row that have not ended."""
        last_s = sequences[0].last_token_at_s
        assert last_s is not None
        self._last_s = last_s
        self._max_gap_s = 0.0
        self._num_settled = 0
        self._reserve_s: float | None = None

    def load(self) -> StepLoad:
        """Return what the next step computes."""
        return StepLoad(
            num_decode_tokens=self.num_sequences,
            num_context_tokens=self.num_context_tokens + self.num_sequences,
            num_adapters=self.num_adapters,
        )

    def end_step(self, now_s: float) -> None:
        """Note that a step has ended."""
        self.num_done += 1
        self.num_left -= 1
        self.num_context_tokens += self.num_sequences
        gap_s = now_s - self._last_s
        if gap_s > self._max_gap_s:
            self._max_gap_s = gap_s
        self._last_s = now_s

    def fix_reserve(self, budget: Budget) -> None:
        """Ask for the reserve at once, if step costs stay as they are during the row.

        It is one of two values, and rises with the context at most once: what it is both at the
        first step and beyond the last one, it is in between.
        """
        num, context = self.num_sequences, self.num_context_tokens
        reserve_s = budget.reserve_s(num, context)
        if reserve_s == budget.reserve_s(num, context + num * self.num_left):
            self._reserve_s = reserve_s

    def outlook(self, cost: StepCost, now_s: float, budget: Budget) -> Outlook:
        """Return what serving needs from now on, by what ``budget`` keeps in reserve."""
        num, context, reserve_s = self.num_sequences, self.num_context_tokens, self._reserve_s
        return look_ahead_decoding(
            self._first_tokens,
            self.num_done,
            self._last_s,
            self._objectives,
            cost,
            now_s,
            StepLoad(num, 0, context, self.num_adapters),
            budget.reserve_s(num, context) if reserve_s is None else reserve_s,
        )

    def num_lacking(self, *, has_begun_next: bool) -> int:
        """Return the blocks that are taken by now beyond those that are held."""
        return self.stretch.num_lacking(self.num_done + has_begun_next)

    def settle(self, log: SimLog, *, has_begun_next: bool) -> None:
        """Bring sequences, blocks and the log to where the row is.

        Args:
            log: Of the row's replica.
            has_begun_next: Whether the next step runs already.
        """
        self.stretch.skip(
            self.num_done, self._token_id, self._last_s, has_begun_next=has_begun_next
        )
        num_new = self.num_done - self._num_settled
        if num_new:
            for one in self.stretch.sequences:
                log.skip(one.request.request_id, num_new, self._max_gap_s, self._last_s)
        self._num_settled, self._max_gap_s = self.num_done, 0.0


def _first_s(sequence: Sequence) -> float:
    assert sequence.first_token_at_s is not None  # it has a latest token, so it has a first one
    return sequence.first_token_at_s
