"""What became of one request, as a server or a replay client saw it."""

from dataclasses import dataclass
from typing import Literal, Protocol

from collm.types import VersionId

Kind = Literal["scored", "length"]
"""Answered to its natural end and compared with an answer, or made as long as a trace says."""

Outcome = Literal["completed", "rejected", "failed", "refused", "aborted"]
"""``rejected``: turned away for lack of room; ``refused``: it asked for what cannot be done;
``aborted``: the client left."""
BLAMELESS: frozenset[Outcome] = frozenset({"refused", "aborted"})
"""Outcomes that the client brought about; objectives say nothing about them."""


class Objectives(Protocol):
    """The latency objectives (SLOs) that a request is held against."""

    @property
    def ttft_s(self) -> float:
        """Return the longest time from arrival to the first token."""
        ...

    @property
    def tpot_s(self) -> float:
        """Return the longest mean time per token after the first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One finished request. All times are seconds of the recorder's one monotonic clock."""

    request_id: str
    model: str
    versions: tuple[VersionId, ...] = ()
    """Adapter versions that the answer named, first seen first; more than one is a defect."""
    site: str = ""
    kind: Kind = "length"
    arrived_at_s: float
    admitted_at_s: float | None = None
    """When it first left the queue, if the recorder could see that."""
    first_token_at_s: float | None = None
    last_token_at_s: float | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    max_gap_s: float | None = None
    """Longest time between two tokens that followed each other; ``None`` below two tokens."""
    finish_reason: str | None = None
    outcome: Outcome
    error: str | None = None
    """Why the request did not complete."""
    ended_at_s: float | None = None
    """When the outcome was known, if that is later than the last token."""
    sent_late_s: float = 0.0
    """By how much a replay client missed the due time; its TTFT already includes this."""
    text: str | None = None
    """The answer, kept by replay clients for scored requests only."""
    expected: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Return the time from arrival to the first token, queueing included."""
        if self.first_token_at_s is None:
            return None
        return self.first_token_at_s - self.arrived_at_s

    @property
    def tpot_s(self) -> float | None:
        """Return the mean time per token after the first; ``None`` below two tokens."""
        if self.first_token_at_s is None or self.last_token_at_s is None:
            return None
        if self.num_output_tokens < 2:
            return None
        return (self.last_token_at_s - self.first_token_at_s) / (self.num_output_tokens - 1)

    @property
    def latency_s(self) -> float | None:
        """Return the time from arrival to the last token."""
        if self.last_token_at_s is None:
            return None
        return self.last_token_at_s - self.arrived_at_s

    @property
    def queue_s(self) -> float | None:
        """Return the time from arrival to first admission."""
        return None if self.admitted_at_s is None else self.admitted_at_s - self.arrived_at_s

    @property
    def prefill_s(self) -> float | None:
        """Return the time from first admission to the first token."""
        if self.admitted_at_s is None or self.first_token_at_s is None:
            return None
        return self.first_token_at_s - self.admitted_at_s

    @property
    def decode_s(self) -> float | None:
        """Return the time from the first token to the last."""
        if self.first_token_at_s is None or self.last_token_at_s is None:
            return None
        return self.last_token_at_s - self.first_token_at_s

    @property
    def is_mixed(self) -> bool:
        """Whether the answer named more than one adapter version."""
        return len(self.versions) > 1

    def met(self, objectives: Objectives) -> bool:
        """Return whether the request completed within every objective."""
        if self.outcome != "completed" or self.ttft_s is None or self.ttft_s > objectives.ttft_s:
            return False
        return self.tpot_s is None or self.tpot_s <= objectives.tpot_s
