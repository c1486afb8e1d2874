"""What a step says about sequences: their tokens and their ends."""

from collections.abc import Iterable
from operator import itemgetter

from collm.engine.plan import SampledToken
from collm.engine.sequence import Order, Sequence
from collm.errors import AdapterError
from collm.types import FinishReason, TokenEvent

News = list[tuple[Order, TokenEvent]]
"""Events with the order of their sequences, as they come about."""


def in_order(news: Iterable[tuple[Order, TokenEvent]]) -> list[TokenEvent]:
    """Return the events in the order of their sequences."""
    return [event for _, event in sorted(news, key=itemgetter(0))]


def token_event(sequence: Sequence, token: SampledToken, reason: FinishReason | None) -> TokenEvent:
    """Return the event of a new token; with ``reason`` it is the last one."""
    # By place: each step makes one of each sequence, and by name they take twice as long.
    return TokenEvent(
        sequence.request.request_id,
        sequence.choice,
        token.token_id,
        reason,
        sequence.binding.version if sequence.binding else None,
        sequence.num_cached_tokens,
        sequence.admitted_at_s,
        token.logprobs,
    )


def end_event(
    sequence: Sequence, reason: FinishReason, error: Exception | None = None
) -> TokenEvent:
    """Return the last event of a sequence that ends without a token."""
    return TokenEvent(
        request_id=sequence.request.request_id,
        choice=sequence.choice,
        token_id=None,
        finish_reason=reason,
        version=sequence.binding.version if sequence.binding else None,
        num_cached_tokens=sequence.num_cached_tokens,
        admitted_at_s=sequence.admitted_at_s,
        error=error,
    )


def not_finite(sequence: Sequence) -> AdapterError:
    """Return why a sequence ends for which the model gives no numbers."""
    version = sequence.binding.version if sequence.binding else None
    return AdapterError(
        f"{version} gives no finite numbers for this prompt, so there is no answer; ask another"
        " version, or roll the adapter back"
    )
