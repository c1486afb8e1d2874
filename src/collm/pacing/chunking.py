"""How much prefill fits beside the decodes of a step."""

from collections.abc import Sequence

from collm.pacing.config import Objectives, PacingConfig
from collm.pacing.deadlines import StepCost, due_at_s
from collm.types import SequenceProgress, StepLoad

_PROBE_TOKENS = 256
"""Where the cost per prefill token is read off; step cost is linear in it."""

_TOKENS_LATE = 4
"""So many tokens behind its deadlines a decode may fall for a first token that would be late."""


class CostPrefillLimit:
    """Lets steps that decode carry as much prefill as their tokens can wait for.

    With sequences decoding, a step carries as many prefill tokens as its upper bound allows within

    - ``tpot_s``, or until the first decode's token is due, if that is later;
    - or, if first tokens would come too late at this pace, until some tokens after that: decodes
      make up for it, as steps without prefill are far shorter than ``tpot_s``, but for answers
      that end before;
    - ``planned_gap_s`` since the latest token of any decode, whatever is due.

    At least it carries ``min_tokens``: prefill always gets on, even where decoding alone takes
    longer. With none decoding, it carries up to ``max_tokens``.

    A step's fixed cost and its decodes take the same time whatever prefill it carries, so longer
    steps prefill faster: beside 14 decodes half as fast again in 150 ms as in 90 ms.

    No time is kept for training. The budgets let quanta run when no prefill is due; a reserve
    here would stretch prefill over more steps, which misses first tokens and gains no training
    time.

    Args:
        cost: Bounds on step times, linear in the load.
        objectives: What deadlines are made from.
        min_tokens: Least prefill tokens in a step.
        max_tokens: Most prefill tokens in a step.
    """

    def __init__(
        self, cost: StepCost, objectives: Objectives, *, min_tokens: int, max_tokens: int
    ) -> None:
        self._cost = cost
        self._objectives = objectives
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens

    def prefill_tokens(self, progress: Sequence[SequenceProgress], now_s: float) -> int:
        """Return the most prefill tokens of a step, given all that runs and waits."""
        decodes = [one for one in progress if one.is_decoding]
        if not decodes:
            return self._max_tokens
        num_context_tokens = sum([one.num_context_tokens for one in decodes]) + len(decodes)
        bare_s = self._step_s(len(decodes), num_context_tokens, 0)
        probe_s = self._step_s(len(decodes), num_context_tokens, _PROBE_TOKENS)
        per_token_s = (probe_s - bare_s) / _PROBE_TOKENS
        may_take_s, late_s = self._may_take_s(decodes, now_s)
        num_tokens = self._fitting(may_take_s - bare_s, per_token_s)
        if late_s > may_take_s and self._would_be_late(progress, num_tokens, may_take_s, now_s):
            num_tokens = self._fitting(late_s - bare_s, per_token_s)
        return num_tokens

    def _may_take_s(self, decodes: Sequence[SequenceProgress], now_s: float) -> tuple[float, float]:
        """Return how long the step may take, and how long it may if first tokens are at stake."""
        tpot_s = self._objectives.tpot_s
        ahead_s = min([due_at_s(one, self._objectives) for one in decodes]) - now_s
        tokens_s = [one.last_token_at_s for one in decodes if one.last_token_at_s is not None]
        longest_s = min(tokens_s, default=now_s) + self._objectives.planned_gap_s - now_s
        late_s = ahead_s + _TOKENS_LATE * tpot_s
        return min(max(ahead_s, tpot_s), longest_s), min(max(late_s, tpot_s), longest_s)

    def _fitting(self, room_s: float, per_token_s: float) -> int:
        """Return how many tokens fit, at least and at most what is allowed."""
        if room_s >= per_token_s * self._max_tokens:
            return self._max_tokens
        return max(int(room_s / per_token_s), self._min_tokens) if room_s > 0 else self._min_tokens

    def _would_be_late(
        self, progress: Sequence[SequenceProgress], num_tokens: int, step_s: float, now_s: float
    ) -> bool:
        """Return whether some first token comes too late in steps of this length and prefill."""
        prefills = [one for one in progress if not one.is_decoding]
        num_ahead = 0
        for one in sorted(prefills, key=lambda one: due_at_s(one, self._objectives)):
            num_ahead += one.num_remaining_prefill
            if now_s + num_ahead / num_tokens * step_s > due_at_s(one, self._objectives):
                return True
        return False

    def _step_s(self, num_decode_tokens: int, num_context_tokens: int, num_prefill: int) -> float:
        return self._cost.upper_s(
            StepLoad(
                num_decode_tokens=num_decode_tokens,
                num_prefill_tokens=num_prefill,
                num_context_tokens=num_context_tokens + num_prefill,
            )
        )


def make_prefill_limit(config: PacingConfig, cost: StepCost) -> CostPrefillLimit:
    """Build the limit that the configuration asks for."""
    return CostPrefillLimit(
        cost,
        config.objectives,
        min_tokens=config.min_prefill_tokens,
        max_tokens=config.max_prefill_tokens,
    )
