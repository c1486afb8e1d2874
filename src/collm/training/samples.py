"""Training samples as tokens, and the split into what is learned from and what is held out."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


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
    def num_supervised(self) -> int:
        """Tokens that the loss counts."""
        return sum(self.is_supervised)


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
    training, held_out = [], []
    for sample in samples:
        is_held_out = _unit_hash(sample) < share
        (held_out if is_held_out else training).append(sample)
    return tuple(training), tuple(sorted(held_out, key=_unit_hash)[:max_held_out])


def _unit_hash(sample: TokenSample) -> float:
    digest = hashlib.sha256(repr(sample.token_ids).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
