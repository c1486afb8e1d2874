"""What one step computes and what came out of it: the values between scheduler and runner."""

from dataclasses import dataclass
from typing import NamedTuple

from collm.engine.sequence import Sequence
from collm.types import BASE_SLOT, StepLoad, TokenLogprobs


class ScheduledSequence(NamedTuple):
    """The next ``num_new_tokens`` known tokens of a sequence, to be computed in this step.

    A tuple, as every step has one of each sequence; ``scheduled`` makes it.
    """

    sequence: Sequence
    num_new_tokens: int
    first_position: int
    """Position of the first new token; as many tokens are computed before it."""
    samples: bool
    """Whether the chunk catches up with the known tokens, so that a token is sampled."""


def scheduled(sequence: Sequence, num_new_tokens: int) -> ScheduledSequence:
    """Plan a sequence's next tokens, as it stands: it moves on in ``update``, the plan does not."""
    first = sequence.num_computed_tokens
    samples = first + num_new_tokens == len(sequence.token_ids)
    return ScheduledSequence(sequence, num_new_tokens, first, samples)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: decodes first, then running prefills, then new admissions."""

    items: tuple[ScheduledSequence, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return sum(item.num_new_tokens for item in self.items)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.items

    def load(self) -> StepLoad:
        """Return the features that the step's time depends on.

        A chunk of one token costs what a decode costs and is counted as one.
        """
        num_decode, num_prefill, num_context = 0, 0, 0
        slots = set[int]()
        for sequence, num_new, first, _ in self.items:
            if num_new == 1:
                num_decode += 1
            else:
                num_prefill += num_new
            num_context += first + num_new
            if sequence.binding is not None:
                slots.add(sequence.binding.slot)
        slots.discard(BASE_SLOT)
        return StepLoad(num_decode, num_prefill, num_context, len(slots))


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """How much work a scheduler holds."""

    num_prefill_tokens: int
    """Tokens of running and waiting sequences still to prefill."""
    num_context_tokens: int
    """Tokens of running sequences whose keys and values are computed."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The token that a sequence goes on with."""

    token_id: int | None
    """``None`` if the model's output was no number, so that there is none to go on with."""
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One token for each item of the plan that samples, in the plan's order."""

    tokens: tuple[SampledToken, ...] = ()
