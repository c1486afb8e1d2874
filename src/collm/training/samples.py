"""Training samples as tokens, and the split into what is learned from and what is held out."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collm.errors import DataError, RequestError
from collm.model.tokenizer import Message, Tokenizer


@dataclass(frozen=True, slots=True)
class TokenSample:
    """One conversation, rendered by the template that serves."""

    token_ids: tuple[int, ...]
    is_supervised: tuple[bool, ...]
    """Per token: whether the model is to learn to produce it. Never the first token."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSamples:
    """An adapter's samples, ready to learn from."""

    training: tuple[TokenSample, ...]
    """At least one."""
    held_out: tuple[TokenSample, ...]
    """At least one; none of them is among ``training``."""
    num_unusable: int
    """Conversations left out: nothing to learn, or too long."""


def prepare_samples(
    conversations: Iterable[Sequence[Message]],
    tokenizer: Tokenizer,
    *,
    max_tokens: int,
    held_out_share: float,
    max_held_out: int,
) -> PreparedSamples:
    """Encode conversations for training and split them.

    Args:
        conversations: Chat messages of each sample.
        tokenizer: Encodes them as serving would.
        max_tokens: Longest sample that is used.
        held_out_share: See ``split_held_out``.
        max_held_out: See ``split_held_out``.

    Raises:
        DataError: No sample can be used, or none is left on one side of the split.
        ModelError: The model's chat template does not suit training.
    """
    samples: list[TokenSample] = []
    num_unusable, reason = 0, ""
    for messages in conversations:
        try:
            samples.append(_encode(messages, tokenizer, max_tokens))
        except RequestError as error:
            num_unusable, reason = num_unusable + 1, reason or str(error)
    if not samples:
        first = f"; the first: {reason}" if reason else ""
        raise DataError(f"none of {num_unusable} samples can be trained on{first}")
    training, held_out = split_held_out(samples, held_out_share, max_held_out)
    if not training or not held_out:
        use, change = ("evaluate on", "raise") if training else ("train on", "lower")
        raise DataError(
            f"held_out_share {held_out_share} of {len(samples)} usable samples leaves none to"
            f" {use}; {change} it or add samples"
        )
    return PreparedSamples(training=training, held_out=held_out, num_unusable=num_unusable)


def _encode(messages: Sequence[Message], tokenizer: Tokenizer, max_tokens: int) -> TokenSample:
    """Encode one conversation; raise ``RequestError`` if it cannot be trained on."""
    tokens = tokenizer.encode_training(messages)
    sample = TokenSample(tokens.token_ids, tokens.is_supervised)
    if not is_usable(sample, max_tokens):
        raise RequestError(
            f"{len(sample.token_ids)} tokens, {sample.num_supervised} of them to learn; at most"
            f" {max_tokens} fit, and the first token cannot be learned"
        )
    return sample


def is_usable(sample: TokenSample, max_tokens: int) -> bool:
    """Return whether a sample fits a micro-batch and supervises something after its first token."""
    return (
        2 <= len(sample.token_ids) <= max_tokens
        and any(sample.is_supervised)
        and not sample.is_supervised[0]
    )


def split_held_out(
    samples: Sequence[TokenSample], share: float, max_held_out: int
) -> tuple[tuple[TokenSample, ...], tuple[TokenSample, ...]]:
    """Split into (training, held out) by a hash of each sample's tokens.

    Equal samples fall on the same side, whatever else is in the set and in whatever order, so a
    held-out sample can never be trained on after a restart or when data is added.
    """
    training: list[TokenSample] = []
    held_out: list[TokenSample] = []
    for sample in samples:
        is_held_out = _unit_hash(sample) < share
        (held_out if is_held_out else training).append(sample)
    return tuple(training), tuple(sorted(held_out, key=_unit_hash)[:max_held_out])


def _unit_hash(sample: TokenSample) -> float:
    digest = hashlib.sha256(repr(sample.token_ids).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
