"""When an answer is over."""

from collm.engine.sequence import Sequence
from collm.types import FinishReason


class Ends:
    """Says whether a sequence ends with its latest token.

    Args:
        eos_token_ids: The model's own end-of-sequence tokens.
        max_len: Most tokens of a sequence, prompt and output.
    """

    def __init__(self, eos_token_ids: frozenset[int], max_len: int) -> None:
        self._eos_token_ids = eos_token_ids
        self._max_len = max_len

    def reason(self, sequence: Sequence) -> FinishReason | None:
        """Return why it ends here, or ``None`` if it goes on."""
        request, token_ids = sequence.request, sequence.token_ids
        sampling, token_id, num_known = request.sampling, token_ids[-1], len(token_ids)
        num_output = num_known - len(request.prompt)
        is_stop = token_id in sampling.stop_token_ids or (
            token_id in self._eos_token_ids and not sampling.ignore_eos
        )
        if is_stop and num_output >= sampling.min_tokens:
            return FinishReason.STOP
        if num_output >= sampling.max_tokens or num_known >= self._max_len:
            return FinishReason.LENGTH
        return None
