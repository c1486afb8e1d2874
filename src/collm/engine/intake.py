"""What may be queued, decided before any of it waits."""

from collections.abc import Sequence

from collm.errors import CapacityError, CollmError, QueueFullError, RequestError
from collm.types import Request


class Intake:
    """Says why a call or a request cannot be queued.

    What never can be is told apart from what can once others are done: only the second is worth
    another try.

    Args:
        max_model_len: Most tokens of a sequence, prompt and output, for the model.
        max_len: The same for this replica, whose pool may hold less.
        max_waiting: Most sequences that wait.
    """

    def __init__(self, *, max_model_len: int, max_len: int, max_waiting: int) -> None:
        self._max_model_len = max_model_len
        self._max_len = max_len
        self._max_waiting = max_waiting

    def refusal_of_call(self, requests: Sequence[Request], num_places: int) -> CollmError | None:
        """Return why the requests of one call cannot be queued together, or ``None``.

        Args:
            requests: All ask for one model.
            num_places: Sequences that may still be queued for it.
        """
        num_sequences = sum(request.n for request in requests)
        if num_sequences > self._max_waiting:
            return CapacityError(
                f"the call asks for {num_sequences} answers, prompts times n; this replica queues "
                f"at most {self._max_waiting}"
            )
        if num_sequences > num_places:
            return QueueFullError(
                f"of at most {self._max_waiting} sequences so many wait that {num_places} more may "
                f"come, and the call asks for {num_sequences}; try later"
            )
        return None

    def refusal(self, request: Request) -> CollmError | None:
        """Return why a request cannot be computed here, or ``None``."""
        num_tokens = len(request.prompt)
        if not 0 < num_tokens < self._max_model_len:
            return RequestError(
                f"the prompt has {num_tokens} tokens; allowed are 1 to {self._max_model_len - 1},"
                f" as prompt and output together have at most {self._max_model_len}",
                param="prompt",
                code="context_length_exceeded",
            )
        if num_tokens >= self._max_len:
            return CapacityError(
                f"the prompt has {num_tokens} tokens; this replica's KV pool allows at most"
                f" {self._max_len - 1}"
            )
        return None
