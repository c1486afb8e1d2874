"""The front's book of one replica: what is open there, and how its promises held."""

import math
from collections import deque
from typing import NamedTuple

from collm.cluster.routes import Choice, RouteRequest

FLOOR_S = 0.02
"""Added to both sides of a ratio of times: below it they tell more of the network than of load."""

_WEIGHT = 0.3
"""Of the newest observation in the mean of a replica's ratios."""
_HALF_LIFE_S = 10.0
"""After this time without observations, half of a correction is left: a replica that nobody is sent
to could never prove that it has recovered."""
_MIN_RATIO = 0.5
_MAX_RATIO = 64.0
_MAX_RECENT = 10_000
"""Requests since a snapshot that are counted; the next snapshot comes far sooner."""


class SentLoad(NamedTuple):
    """What is known of a replica beyond its snapshot."""

    num_sequences: int
    """Sent since the snapshot, and not ended."""
    num_prefill_tokens: int
    """Of those that wait for a first token, tokens to prefill."""
    num_open: int
    """All that was sent and has not ended."""
    num_queued_tokens: int
    """Tokens to prefill of all that wait for a first token, the one that waits longest left out: it
    may be nearly done."""
    ratio: float
    """Times that first tokens take longer than the replica's snapshots claim."""


NOTHING_SENT = SentLoad(0, 0, 0, 0, 1.0)


class Ticket:
    """One request on its way: made by ``Sent.add`` and handed back to it."""

    __slots__ = (
        "expected_s",
        "has_started",
        "is_ended",
        "is_recent",
        "lane",
        "num_tokens",
        "sent_at_s",
    )

    def __init__(self, lane: "Lane", choice: Choice, now_s: float) -> None:
        self.lane = lane
        self.sent_at_s = now_s
        self.expected_s = choice.claimed_ttft_s
        self.num_tokens = choice.num_prefill_tokens
        self.is_recent = True
        self.has_started = False
        self.is_ended = False


class Lane:
    """Sums over the requests that one replica was sent, kept as they come and go.

    Answers that are not streamed say nothing about first tokens: they only count as open.
    """

    def __init__(self) -> None:
        self.num_open = 0
        """Requests that have not ended."""
        self._recent: deque[Ticket] = deque()
        self._num_recent = 0
        self._recent_tokens = 0
        self._waiting: dict[Ticket, None] = {}  # streams without a first byte, as they were sent
        self._waiting_tokens = 0
        self._ratio = 1.0
        self._observed_at_s = -math.inf
        self._started_at_s = -math.inf

    def add(self, request: RouteRequest, choice: Choice, now_s: float) -> Ticket:
        """Note that a request is sent."""
        ticket = Ticket(self, choice, now_s)
        self.num_open += 1
        if request.is_streamed:
            self._waiting[ticket] = None
            self._waiting_tokens += ticket.num_tokens
        self._recent.append(ticket)
        self._num_recent += 1
        self._recent_tokens += ticket.num_tokens
        if len(self._recent) > _MAX_RECENT:
            self._settle(self._recent.popleft())
        return ticket

    def start(self, ticket: Ticket, now_s: float) -> None:
        """Note a first byte; only the first call for a ticket counts."""
        if ticket.has_started:
            return
        if ticket in self._waiting:
            self._observe(_ratio(now_s - ticket.sent_at_s, ticket.expected_s), now_s)
        self._leave_queue(ticket)
        self._started_at_s = now_s

    def finish(self, ticket: Ticket, now_s: float) -> None:
        """Note an end, with or without an answer; only the first call for a ticket counts."""
        if ticket.is_ended:
            return
        if ticket in self._waiting:
            waited_s = self._waited_s(ticket, now_s)
            if waited_s > ticket.expected_s:  # given up: it would have taken even longer
                self._observe(_ratio(waited_s, ticket.expected_s), now_s)
        if not ticket.has_started:
            self._leave_queue(ticket)
        ticket.is_ended = True
        self.num_open -= 1
        if ticket.is_recent:
            self._num_recent -= 1

    def load(self, taken_at_s: float, now_s: float) -> SentLoad:
        """Return what to add to a snapshot taken at ``taken_at_s``; later ones only grow."""
        recent = self._recent
        while recent and recent[0].sent_at_s < taken_at_s:
            self._settle(recent.popleft())
        ratio = 1.0 if self._ratio == 1.0 else self._faded_ratio(now_s)
        num_queued = 0
        if self._waiting:
            oldest = next(iter(self._waiting))
            waited_s = self._waited_s(oldest, now_s)
            if waited_s > oldest.expected_s:
                ratio = max(ratio, _ratio(waited_s, oldest.expected_s))
            num_queued = self._waiting_tokens - oldest.num_tokens
        return SentLoad(self._num_recent, self._recent_tokens, self.num_open, num_queued, ratio)

    def _settle(self, ticket: Ticket) -> None:
        """Stop counting a ticket as sent since the snapshot."""
        ticket.is_recent = False
        if not ticket.is_ended:
            self._num_recent -= 1
        if not ticket.has_started:
            self._recent_tokens -= ticket.num_tokens

    def _leave_queue(self, ticket: Ticket) -> None:
        ticket.has_started = True
        if ticket.is_recent:
            self._recent_tokens -= ticket.num_tokens
        if ticket in self._waiting:
            del self._waiting[ticket]
            self._waiting_tokens -= ticket.num_tokens

    def _waited_s(self, ticket: Ticket, now_s: float) -> float:
        """Return how long nothing has come: no longer than since another's first byte."""
        return now_s - max(ticket.sent_at_s, self._started_at_s)

    def _observe(self, ratio: float, now_s: float) -> None:
        self._ratio = self._faded_ratio(now_s) * (1.0 - _WEIGHT) + ratio * _WEIGHT
        self._observed_at_s = now_s

    def _faded_ratio(self, now_s: float) -> float:
        age_s = now_s - self._observed_at_s
        return 1.0 + (self._ratio - 1.0) * math.exp2(-age_s / _HALF_LIFE_S)


def _ratio(took_s: float, expected_s: float) -> float:
    return min(max((took_s + FLOOR_S) / (expected_s + FLOOR_S), _MIN_RATIO), _MAX_RATIO)
