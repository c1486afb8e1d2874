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
        sampling, token_id = sequence.request.sampling, sequence.token_ids[-1]
        num_output = sequence.num_output_tokens
        is_stop = token_id in sampling.stop_token_ids or (
            token_id in self._eos_token_ids and not sampling.ignore_eos
        )
        if is_stop and num_output >= sampling.min_tokens:
            return FinishReason.STOP
        if num_output >= sampling.max_tokens or len(sequence.token_ids) >= self._max_len:
            return FinishReason.LENGTH
        return None
