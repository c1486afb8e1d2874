"""Training samples as tokens."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from collm.errors import DataError, RequestError
from collm.gate.config import GENERAL
from collm.model.tokenizer import Message, Tokenizer

_MAX_GENERAL_TOKENS = 64
"""Where general text is cut: it guards against forgetting, and must not cost much of a batch."""
_OWN_GENERAL = f"{GENERAL} (own)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Chat messages to learn from, and what is known of them."""

    messages: Sequence[Message]
    """Ends with the answer to be learned."""
    slice: str = ""
    """Domain that it is judged in."""
    sample_id: str = ""
    """Name by which it can be removed; empty derives one from its text."""
    weight: float = 1.0
    """See ``TokenSample``."""
    learned: frozenset[int] | None = None
    """Indices of the assistant's turns to learn; ``None`` for all of them."""


@dataclass(frozen=True, slots=True)
class TokenSample:
    """One conversation, rendered by the template that serves."""

    token_ids: tuple[int, ...]
    is_supervised: tuple[bool, ...]
    """Per token: whether the model is to learn to produce it. Never the first token."""
    sample_id: str = ""
    """Unique within an adapter's samples; derived from the text if none is given."""
    slice: str = ""
    """Domain that it is judged in when it is held out."""
    weight: float = 1.0
    """Multiplies its loss in training, and its tokens in what a step is divided by; above 0."""
    text_digest: str = field(init=False)
    """Names the text: equal for equal tokens."""
    text_share: float = field(init=False)
    """The text's hash as a number in [0, 1)."""
    order_hash: int = field(init=False)
    """Signed 64 bits of ``sample_id``'s hash, from which orders are drawn."""

    def __post_init__(self) -> None:
        """Hash once, on the thread that prepares samples, what the step loop's thread needs."""
        assert self.weight > 0.0, self.weight
        digest = hashlib.sha256(repr(self.token_ids).encode()).hexdigest()[:32]
        object.__setattr__(self, "text_digest", digest)
        object.__setattr__(self, "text_share", int(digest[:16], 16) / 2**64)
        if not self.sample_id:
            object.__setattr__(self, "sample_id", digest[:24])
        hashed = hashlib.sha256(self.sample_id.encode()).digest()
        object.__setattr__(self, "order_hash", int.from_bytes(hashed[:8], "big", signed=True))

    @property
    def first_loss_row(self) -> int:
        """Row whose next token is the first supervised one."""
        return self.is_supervised.index(True) - 1

    @property
    def num_rows(self) -> int:
        """Leading tokens that some supervised token depends on: all before the last one."""
        return len(self.is_supervised) - 1 - self.is_supervised[::-1].index(True)

    @property
    def num_supervised(self) -> int:
        """Tokens that the loss counts."""
        return sum(self.is_supervised)

    def is_held_out(self, share: float) -> bool:
        """Whether it falls into the share that is never trained on.

        By the text alone: equal samples fall on the same side, whatever else is in the set and in
        whatever order, so that a restart or more data never moves one.
        """
        return self.text_share < share


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSamples:
    """An adapter's conversations as tokens, and what could not be used."""

    samples: tuple[TokenSample, ...]
    """No two with the same id: a text that comes again is numbered."""
    num_unusable: int
    """Conversations left out: nothing to learn, or too long."""
    num_too_long: int
    """Those among them that are too long."""
    reason: str
    """Why the first of them was left out; empty if none was."""


def prepare_samples(
    conversations: Iterable[Conversation], tokenizer: Tokenizer, *, max_tokens: int
) -> PreparedSamples:
    """Encode conversations as serving would.

    Args:
        conversations: What to learn from.
        tokenizer: Encodes them.
        max_tokens: Longest sample that is used; a longer one would not fit a micro-batch, whose
            size bounds every quantum.

    Raises:
        DataError: There are conversations, but none can be used.
        ModelError: The model's chat template does not suit training.
    """
    samples: list[TokenSample] = []
    seen: Counter[str] = Counter()
    num_unusable, num_too_long, reason = 0, 0, ""
    for conversation in conversations:
        try:
            sample = encode_sample(conversation, tokenizer, max_tokens=max_tokens)
        except RequestError as error:
            num_unusable, reason = num_unusable + 1, reason or str(error)
            num_too_long += error.code == "too_long"
            continue
        seen[sample.sample_id] += 1
        if (number := seen[sample.sample_id]) > 1:
            sample = replace(sample, sample_id=f"{sample.sample_id}.{number}")
        samples.append(sample)
    if num_unusable and not samples:
        raise DataError(f"none of {num_unusable} samples can be trained on; the first: {reason}")
    return PreparedSamples(
        samples=tuple(samples),
        num_unusable=num_unusable,
        num_too_long=num_too_long,
        reason=reason,
    )


def encode_sample(
    conversation: Conversation, tokenizer: Tokenizer, *, max_tokens: int
) -> TokenSample:
    """Encode one conversation.

    Raises:
        RequestError: It cannot be trained on; code ``too_long`` if that is why.
        ModelError: The model's chat template does not suit training.
    """
    sample = _encode(conversation, tokenizer)
    num_tokens = len(sample.token_ids)
    if num_tokens > max_tokens:
        raise RequestError(f"{num_tokens} tokens; at most {max_tokens} fit", code="too_long")
    if not _teaches(sample):
        raise RequestError(
            f"{num_tokens} tokens, {sample.num_supervised} of them to learn; at least one must be,"
            " and the first token cannot be"
        )
    return sample


def prepare_general(
    conversations: Sequence[Conversation], tokenizer: Tokenizer, *, max_samples: int
) -> tuple[TokenSample, ...]:
    """Encode general text, against forgetting: evenly spaced, and long answers cut.

    Raises:
        RequestError: The model has no chat template, or it refuses a text.
        ModelError: The model's chat template does not suit training.
    """
    step = max(1, -(-len(conversations) // max_samples))
    encoded = (_encode(conversation, tokenizer) for conversation in conversations[::step])
    # The id goes on naming the whole text.
    general = [replace(s, slice=GENERAL, sample_id=s.text_digest) for s in encoded]
    return clipped(general, _MAX_GENERAL_TOKENS)


def clipped(samples: Iterable[TokenSample], max_tokens: int) -> tuple[TokenSample, ...]:
    """Return samples cut to ``max_tokens`` tokens, without those that then teach nothing."""
    cut = (
        sample
        if len(sample.token_ids) <= max_tokens
        else replace(
            sample,
            token_ids=sample.token_ids[:max_tokens],
            is_supervised=sample.is_supervised[:max_tokens],
        )
        for sample in samples
    )
    return tuple(sample for sample in cut if _teaches(sample))


def _encode(conversation: Conversation, tokenizer: Tokenizer) -> TokenSample:
    tokens = tokenizer.encode_training(conversation.messages, conversation.learned)
    return TokenSample(
        tokens.token_ids,
        tokens.is_supervised,
        conversation.sample_id,
        # The name would keep a domain of the adapter's own out of the gate's evidence.
        _OWN_GENERAL if conversation.slice == GENERAL else conversation.slice,
        conversation.weight,
    )


def _teaches(sample: TokenSample) -> bool:
    """Return whether something after the first token, and not the first, is supervised."""
    return any(sample.is_supervised) and not sample.is_supervised[0]
