"""What can be traced, and the objects that trace nothing; ``otel.py`` has those that do.

Everything is told once, when a request or a round has ended or gone on to another replica; nothing
is told per token or per step.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from collm.metrics.records import RequestRecord

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class TracedStage:
    """One stage of a round; times are seconds since 1970."""

    name: str
    started_at_s: float
    ended_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRound:
    """A round that has ended; times are seconds since 1970."""

    adapter: str
    number: int
    outcome: str
    reason: str
    members: Sequence[str]
    """Each as ``NAME OUTCOME``."""
    started_at_s: float
    ended_at_s: float
    stages: Sequence[TracedStage]


class ProxiedRequest(Protocol):
    """One request on its way through a front."""

    def headers(self, client: Headers) -> Headers:
        """Return the client's headers as they go to a replica, naming the trace."""
        ...

    def note(self, event: str, replica_id: str) -> None:
        """Note that something happened at a replica now."""
        ...

    def end(self, outcome: str) -> None:
        """Note how it ended, now; later calls change nothing."""
        ...


class Traces(Protocol):
    """Where the paths of requests and rounds go."""

    def proxied(self, path: str, client: Headers) -> ProxiedRequest:
        """Begin to follow a request that a front passes on; ``client`` may name its trace."""
        ...

    def request_ended(self, record: RequestRecord, traceparent: str | None, now_s: float) -> None:
        """Show a request's path through a replica.

        Args:
            record: What became of it.
            traceparent: The trace that it belongs to, as W3C Trace Context has it.
            now_s: Now, by the clock of the record's times.
        """
        ...

    def round_ended(self, path: TracedRound) -> None:
        """Show a round's path."""
        ...

    def close(self) -> None:
        """Send what is still to be sent."""
        ...


class NotFollowed:
    """A request that is not traced."""

    def headers(self, client: Headers) -> Headers:
        """Return the headers as they are; a trace that the client named goes on."""
        return client

    def note(self, event: str, replica_id: str) -> None:
        """Do nothing."""

    def end(self, outcome: str) -> None:
        """Do nothing."""


class NoTraces:
    """Traces nothing."""

    def __init__(self) -> None:
        self._request = NotFollowed()

    def proxied(self, path: str, client: Headers) -> ProxiedRequest:
        """Return what follows nothing."""
        return self._request

    def request_ended(self, record: RequestRecord, traceparent: str | None, now_s: float) -> None:
        """Do nothing."""

    def round_ended(self, path: TracedRound) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
