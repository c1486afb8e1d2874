"""What becomes of the requests of one simulated replica."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from collm.cluster.lanes import Ticket
from collm.errors import CapacityError, QueueFullError
from collm.metrics.records import Objectives, Outcome, RequestRecord
from collm.metrics.totals import Totals
from collm.pacing.credit import Credit
from collm.sim.requests import SimRequest
from collm.sim.versions import ADAPTER
from collm.types import FinishReason, RequestId, TokenEvent, VersionId


@dataclass(slots=True)
class OpenRequest:
    """A request on its way."""

    request: SimRequest
    ticket: Ticket | None
    """The front's note of it; ``None`` where the front keeps no book."""
    first_token_at_s: float | None = None
    last_token_at_s: float | None = None
    max_gap_s: float | None = None
    num_tokens: int = 0
    version: VersionId | None = None


class FrontDesk(Protocol):
    """The front, as it hears of answers."""

    def started(self, entry: OpenRequest, now_s: float) -> None:
        """Note a request's first token."""
        ...

    def ended(self, entry: OpenRequest, record: RequestRecord, replica_id: str) -> None:
        """Note a request's end."""
        ...


class SimLog:
    """Follows requests to their records, as ``replica.request_log`` does.

    Args:
        replica_id: Whose log it is.
        objectives: What was promised.
        credit: Is told of objectives met and missed.
        totals: Counts.
        front: Is told of first tokens and ends.
    """

    def __init__(
        self,
        replica_id: str,
        objectives: Objectives,
        credit: Credit,
        totals: Totals,
        front: FrontDesk,
    ) -> None:
        self._replica_id = replica_id
        self._objectives = objectives
        self._credit = credit
        self._totals = totals
        self._front = front
        self._open: dict[RequestId, OpenRequest] = {}

    def begin(self, request_id: RequestId, entry: OpenRequest) -> None:
        """Note a request's arrival at the replica."""
        self._totals.arrived(ADAPTER, entry.request.at_s)
        self._open[request_id] = entry

    def observe(self, events: Iterable[TokenEvent], now_s: float) -> None:
        """Take in what a step published."""
        for event in events:
            entry = self._open[event.request_id]
            if event.token_id is not None:
                if entry.last_token_at_s is None:
                    entry.first_token_at_s = now_s
                    entry.version = event.version
                    self._front.started(entry, now_s)
                else:
                    gap_s = now_s - entry.last_token_at_s
                    if entry.max_gap_s is None or gap_s > entry.max_gap_s:
                        entry.max_gap_s = gap_s
                entry.last_token_at_s = now_s
                entry.num_tokens += 1
            if event.finish_reason is not None:
                del self._open[event.request_id]
                self._end(entry, event.request_id, _outcome(event), event.finish_reason, now_s)

    def skip(self, request_id: RequestId, num_tokens: int, max_gap_s: float, now_s: float) -> None:
        """Take in ``num_tokens`` later tokens at once, the latest of them now."""
        entry = self._open[request_id]
        entry.num_tokens += num_tokens
        entry.last_token_at_s = now_s
        if entry.max_gap_s is None or max_gap_s > entry.max_gap_s:
            entry.max_gap_s = max_gap_s

    def fail_all(self, now_s: float) -> None:
        """End every open request, as when the replica dies."""
        lost, self._open = self._open, {}
        for request_id, entry in lost.items():
            self._end(entry, request_id, "failed", FinishReason.ERROR, now_s)

    def _end(
        self,
        entry: OpenRequest,
        request_id: RequestId,
        outcome: Outcome,
        reason: FinishReason,
        now_s: float,
    ) -> None:
        request = entry.request
        record = RequestRecord(
            request_id=request_id,
            model=ADAPTER,
            versions=() if entry.version is None else (entry.version,),
            kind="scored" if request.is_scored else "length",
            arrived_at_s=request.at_s,
            first_token_at_s=entry.first_token_at_s,
            last_token_at_s=entry.last_token_at_s,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=entry.num_tokens,
            max_gap_s=entry.max_gap_s,
            finish_reason=reason,
            outcome=outcome,
            ended_at_s=now_s,
        )
        if outcome == "completed":
            (self._credit.met if record.met(self._objectives) else self._credit.missed)()
        self._totals.ended(record)
        self._front.ended(entry, record, self._replica_id)


def _outcome(event: TokenEvent) -> Outcome:
    if event.finish_reason is FinishReason.ERROR:
        is_full = isinstance(event.error, QueueFullError | CapacityError)
        return "rejected" if is_full else "refused"
    return "completed"
