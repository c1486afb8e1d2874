"""What a router is asked, and what it answers."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from collm.types import VersionId

OUTPUT_TOKENS_GUESS = 64
"""Output tokens of an answer without a limit, and most that is expected of one with a high limit:
few answers come near theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRequest:
    """What the front knows of a request without a tokenizer."""

    model: str
    """The base model's id, ``NAME`` or ``NAME@LABEL``."""
    num_prompt_bytes: int
    """UTF-8 bytes of all message texts."""
    num_output_tokens_guess: int = OUTPUT_TOKENS_GUESS
    """Output tokens that it will probably take."""
    prefix_hashes: tuple[int, ...] = ()
    """For each message, a hash of all texts up to and including it."""
    session: str | None = None
    """Names a conversation, if the client does."""
    is_streamed: bool = True
    """Whether its first byte comes with its first token, and not with its last."""


class Choice(NamedTuple):
    """The replica that a request goes to, and what is expected of it; cheap to make."""

    replica_id: str
    ttft_s: float
    """Predicted time to the first token."""
    tpot_s: float
    """Predicted time per output token after the first."""
    chance: float
    """Predicted chance to meet both objectives, in [0, 1]."""
    claimed_ttft_s: float
    """The prediction before it was corrected by what this replica's others took."""
    num_prompt_tokens: int
    """Estimated from bytes."""
    num_prefill_tokens: int
    """Those of the prompt that are probably not cached there."""
    version: VersionId | None = None
    """The adapter version that would answer, and what is cached with it; ``None`` for the base."""


class TurnedReason(StrEnum):
    """Why a request has no replica."""

    NO_REPLICA = "no replica"
    """None is alive and accepting: status 503."""
    LATE = "late"
    """None would meet the objectives, and the operator asked to be told so: status 429."""


@dataclass(frozen=True, slots=True)
class Turned:
    """No replica takes the request now."""

    retry_after_s: float
    """When it is worth another try, at least 1."""
    reason: TurnedReason
