"""The engine's changing state for a request: a sequence per choice, a group for what they share."""

from dataclasses import dataclass, field

from collm.types import Binding, Request, RequestId, SequenceProgress

Order = tuple[float, RequestId, int]
"""Arrival, request id, choice: the one order of admission, preemption and simultaneous events."""


@dataclass(eq=False, slots=True)
class Sequence:
    """One choice of a request: its known tokens and how many of them are computed.

    Prefill, chunked prefill, resuming and decoding are all the same: computed tokens catching up
    with known tokens. Written by the scheduler (or a ``Stretch`` of it) and the block manager, read
    by the runner.
    """

    request: Request
    choice: int
    token_ids: list[int] = field(init=False)
    """Known tokens: the prompt, then the output."""
    order: Order = field(init=False)
    num_computed_tokens: int = 0
    """Leading known tokens whose keys and values are in the block table."""
    block_table: list[int] = field(default_factory=list)
    num_committed_blocks: int = 0
    """Leading blocks that the block manager has offered to the prefix cache."""
    binding: Binding | None = None
    """The version that serves the request, from its admission on."""
    num_cached_tokens: int = 0
    """Prompt tokens taken from the prefix cache when first admitted."""
    num_preemptions: int = 0
    admitted_at_s: float | None = None
    first_token_at_s: float | None = None
    last_token_at_s: float | None = None
    is_finished: bool = False

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt)
        self.order = (self.request.arrived_at_s, self.request.request_id, self.choice)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - len(self.request.prompt)

    @property
    def num_remaining(self) -> int:
        """Known tokens that are not computed; at least 1 until the sequence has ended."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the latest known token is still to compute."""
        return len(self.token_ids) - self.num_computed_tokens > 1

    def progress(self, *, is_running: bool) -> SequenceProgress:
        """Return a frozen view of how far this sequence is."""
        request, num_tokens = self.request, len(self.token_ids)
        # By place: each step makes two of each sequence, and by name they take twice as long.
        return SequenceProgress(
            request.arrived_at_s,
            num_tokens - len(request.prompt),
            num_tokens - self.num_computed_tokens,
            self.num_computed_tokens,
            self.last_token_at_s,
            is_running,
            self.first_token_at_s,
        )


class RequestGroup:
    """What the choices of one request share: its binding, held until the last choice lets go."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.sequences = tuple(Sequence(request, choice) for choice in range(request.n))
        self.binding: Binding | None = None
        self.has_computed_prompt = False
        """Set once choice 0 has computed the prompt; the other choices wait for it."""
        self._num_unreleased = request.n

    def bind(self, binding: Binding | None) -> None:
        """Give every choice the same version, or none when admission found no room after all."""
        self.binding = binding
        for sequence in self.sequences:
            sequence.binding = binding

    def is_ready(self, sequence: Sequence) -> bool:
        """Return whether a choice may be admitted: it would find the prompt computed if it can."""
        first = self.sequences[0]
        return sequence is first or self.has_computed_prompt or first.is_finished

    def release_one(self) -> bool:
        """Note that one choice holds nothing any more; return whether it was the last."""
        self._num_unreleased -= 1
        assert self._num_unreleased >= 0, f"{self.request.request_id} released too often"
        return self._num_unreleased == 0
