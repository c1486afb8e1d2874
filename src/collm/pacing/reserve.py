"""How far ahead of their deadlines decodes stay, for the sake of the next prompt."""

import math
from collections import deque
from collections.abc import Sequence

from collm.pacing.config import Objectives
from collm.pacing.deadlines import StepCost
from collm.types import SequenceProgress, StepLoad

_TOKENS_AHEAD = 16
"""So many tokens ahead of its deadlines a decode stays where prompts need it: when one comes, that
is what longer steps are made of."""
_NUM_PROMPTS = 64
"""The latest prompts, from which the next one's length is guessed."""
_LONG = 0.95
"""A prompt longer than this share of the others is planned for."""
_TTFT_SHARE = 0.3
"""Share of the TTFT objective that a long prompt may take at the usual pace; the rest is for what
comes before it: prompts come in bursts, and three long ones are soon together."""


class Reserve:
    """Decides whether decodes have to be ahead before training takes their time.

    Training stretches answers, so that more run side by side and steps have less room for prefill.
    As long as a long prompt, by what came lately, would still be computed in time beside them, in
    steps of the TPOT objective, that harms nobody. Once it would not, decodes have to be some
    tokens ahead: then steps may be longer.

    Args:
        objectives: What deadlines are made from.
        cost: Bounds on step times.
    """

    def __init__(self, objectives: Objectives, cost: StepCost) -> None:
        self._objectives = objectives
        self._cost = cost
        self._lengths: deque[int] = deque(maxlen=_NUM_PROMPTS)
        self._latest_arrival_s = -math.inf
        self._num_long = 0

    def look(self, progress: Sequence[SequenceProgress]) -> None:
        """Note the prompts that have come since the last call."""
        new = [one for one in progress if one.arrived_at_s > self._latest_arrival_s]
        if not new:
            return
        self._lengths.extend(_num_prompt_tokens(one) for one in new)
        self._latest_arrival_s = max(one.arrived_at_s for one in new)
        ordered = sorted(self._lengths)
        self._num_long = ordered[int(_LONG * len(ordered))]

    def seconds(self, progress: Sequence[SequenceProgress]) -> float:
        """Return how far ahead of its deadline each decode should stay now."""
        decodes = [one for one in progress if one.is_decoding]
        return self.seconds_beside(len(decodes), sum(one.num_context_tokens for one in decodes))

    def seconds_beside(self, num_decodes: int, num_context_tokens: int) -> float:
        """Return the same for so many decodes with so many tokens of context together."""
        bare_s = self._step_s(num_decodes, num_context_tokens, 0)
        prefill_s = self._step_s(num_decodes, num_context_tokens, self._num_long) - bare_s
        room_s = self._objectives.tpot_s - bare_s
        # In room_s / tpot_s of the time, for the rest goes into decoding.
        is_tight = prefill_s * self._objectives.tpot_s > (
            _TTFT_SHARE * self._objectives.ttft_s * room_s
        )
        return _TOKENS_AHEAD * self._objectives.tpot_s if is_tight else 0.0

    def _step_s(self, num_decodes: int, num_context_tokens: int, num_prefill_tokens: int) -> float:
        num_context = num_context_tokens + num_prefill_tokens
        return self._cost.upper_s(StepLoad(num_decodes, num_prefill_tokens, num_context))


def _num_prompt_tokens(progress: SequenceProgress) -> int:
    num_known = progress.num_context_tokens + progress.num_remaining_prefill
    return num_known - progress.num_output_tokens
