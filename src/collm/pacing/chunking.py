"""How much prefill fits beside the decodes of a step."""

from collections.abc import Sequence

from collm.pacing.config import Objectives, PacingConfig
from collm.pacing.deadlines import StepCost, due_at_s
from collm.types import SequenceProgress, StepLoad

_PROBE_TOKENS = 256
"""Where the cost per prefill token is read off; step cost is linear in it."""


_GAP_SHARE = 0.8
"""Share of the longest gap that a step with prefill is planned for: some steps exceed their bound,
and a quantum may have come before."""


class CostPrefillLimit:
    """Lets steps that decode carry as much prefill as their tokens can wait for.

    With sequences decoding, a step carries as many prefill tokens as its upper bound allows within

    - ``tpot_s``, or longer as long as no decode gets later than its deadline by more than one long
      gap takes: it makes up for that, as steps without prefill are far shorter than ``tpot_s``;
    - four fifths of ``gap_s`` since the latest token of any decode.

    At least it carries ``min_tokens``: prefill always gets on, even where decoding alone takes
    longer. With none, it carries up to ``max_tokens``.

    A step's fixed cost and its decodes take the same time whatever prefill it carries, so longer
    steps prefill faster: beside ten decodes twice as fast in 200 ms as in 90 ms.

    No time is kept for training. The budgets let quanta run when no prefill is due; a reserve
    here would stretch prefill over more steps, which misses first tokens and gains no training
    time.

    Args:
        cost: Bounds on step times, linear in the load.
        objectives: What decodes' deadlines are made from.
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

    def prefill_tokens(self, decodes: Sequence[SequenceProgress], now_s: float) -> int:
        """Return the most prefill tokens for a step with these decodes, all running."""
        if not decodes:
            return self._max_tokens
        num_context_tokens = sum(one.num_context_tokens + 1 for one in decodes)
        bare_s = self._step_s(len(decodes), num_context_tokens, 0)
        probe_s = self._step_s(len(decodes), num_context_tokens, _PROBE_TOKENS)
        room_s, per_token_s = self._may_take_s(decodes, now_s) - bare_s, probe_s - bare_s
        per_token_s /= _PROBE_TOKENS
        if room_s >= per_token_s * self._max_tokens:
            return self._max_tokens
        return max(int(room_s / per_token_s), self._min_tokens) if room_s > 0 else self._min_tokens

    def _may_take_s(self, decodes: Sequence[SequenceProgress], now_s: float) -> float:
        """Return how long the step may take from ``now_s`` on."""
        tpot_s, gap_s = self._objectives.tpot_s, self._objectives.gap_s
        due_s = min(due_at_s(one, self._objectives) for one in decodes)
        due_s += max(gap_s - tpot_s, 0.0)
        tokens_s = [one.last_token_at_s for one in decodes if one.last_token_at_s is not None]
        latest_s = min(tokens_s, default=now_s) + _GAP_SHARE * gap_s
        return min(max(due_s - now_s, tpot_s), latest_s - now_s)

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
