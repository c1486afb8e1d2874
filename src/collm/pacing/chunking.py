"""How much prefill fits beside the decodes of a step."""

from collm.pacing.config import PacingConfig
from collm.pacing.deadlines import StepCost
from collm.types import StepLoad

_PROBE_TOKENS = 256
"""Where the cost per prefill token is read off; step cost is linear in it."""


class CostPrefillLimit:
    """Keeps steps that decode within the TPOT objective.

    With sequences decoding, a step carries as many prefill tokens as its upper bound allows within
    ``tpot_s``, but at least ``min_tokens``: prefill always gets on, even where decoding alone takes
    longer. With none, it carries up to ``max_tokens``.

    No time is kept for training. The budgets know what the next step will carry and let a quantum
    run only in what it leaves; a reserve would stretch prefill over more steps, which misses first
    tokens and gains no training time.

    Args:
        cost: Bounds on step times, linear in the load.
        tpot_s: Time that a step with decodes may take.
        min_tokens: Least prefill tokens in a step.
        max_tokens: Most prefill tokens in a step.
    """

    def __init__(self, cost: StepCost, *, tpot_s: float, min_tokens: int, max_tokens: int) -> None:
        self._cost = cost
        self._tpot_s = tpot_s
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens

    def prefill_tokens(self, num_decode_tokens: int, num_context_tokens: int) -> int:
        """Return the most prefill tokens for a step with these decodes.

        Args:
            num_decode_tokens: Sequences that decode in the step.
            num_context_tokens: Keys that they read, summed.
        """
        if num_decode_tokens == 0:
            return self._max_tokens
        bare_s = self._step_s(num_decode_tokens, num_context_tokens, 0)
        probe_s = self._step_s(num_decode_tokens, num_context_tokens, _PROBE_TOKENS)
        room_s, per_token_s = self._tpot_s - bare_s, (probe_s - bare_s) / _PROBE_TOKENS
        if room_s >= per_token_s * self._max_tokens:
            return self._max_tokens
        return max(int(room_s / per_token_s), self._min_tokens) if room_s > 0 else self._min_tokens

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
        tpot_s=config.objectives.tpot_s,
        min_tokens=config.min_prefill_tokens,
        max_tokens=config.max_prefill_tokens,
    )
