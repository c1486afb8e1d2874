"""One record per request, written when its last choice ends."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from collm.errors import CapacityError, QueueFullError, RequestError, UnknownAdapterError
from collm.metrics.exporter import ReplicaMetrics
from collm.metrics.records import Objectives, Outcome, RequestRecord
from collm.metrics.traces import Traces
from collm.pacing.credit import Credit
from collm.types import FinishReason, Request, RequestId, TokenEvent, VersionId


@dataclass(slots=True)
class _Open:
    """A request of which some choice still runs."""

    request: Request
    num_open: int
    admitted_at_s: float | None = None
    first_token_at_s: float | None = None
    max_gap_s: float | None = None
    versions: dict[VersionId, None] = field(default_factory=dict)
    num_tokens: dict[int, int] = field(default_factory=dict)
    last_token_at_s: dict[int, float] = field(default_factory=dict)

    def add_token(self, event: TokenEvent, now_s: float) -> float | None:
        """Count a token; return the gap since the choice's one before."""
        choice = event.choice
        before = self.last_token_at_s.get(choice)
        if self.first_token_at_s is None:
            self.first_token_at_s = now_s
        self.last_token_at_s[choice] = now_s
        self.num_tokens[choice] = self.num_tokens.get(choice, 0) + 1
        if event.version is not None:
            self.versions[event.version] = None
        if before is None:
            return None
        self.max_gap_s = max(self.max_gap_s or 0.0, now_s - before)
        return now_s - before


class RequestLog:
    """Follows requests from arrival to their record; feeds metrics, traces and the credit's AIMD.

    Args:
        metrics: Counts requests.
        objectives: What they are held against.
        credit: Shrinks with misses.
        traces: Shows the path of each.
    """

    def __init__(
        self, metrics: ReplicaMetrics, objectives: Objectives, credit: Credit, traces: Traces
    ) -> None:
        self._metrics = metrics
        self._traces = traces
        self._objectives = objectives
        self._credit = credit
        self._open: dict[RequestId, _Open] = {}
        self.num_finished = 0
        self.num_failed = 0
        self.num_mixed = 0
        """Requests whose tokens came from more than one version; any is a bug."""

    def begin(self, request: Request) -> None:
        """Note a request's arrival."""
        self._metrics.arrived(request.model, request.arrived_at_s)
        self._open[request.request_id] = _Open(request, request.n)

    def observe(self, events: Iterable[TokenEvent], now_s: float) -> None:
        """Take in what a step published."""
        for event in events:
            entry = self._open.get(event.request_id)
            if entry is None:
                continue
            if entry.admitted_at_s is None:
                entry.admitted_at_s = event.admitted_at_s
            if event.token_id is not None:
                if event.choice == 0 and 0 not in entry.num_tokens:
                    num_prompt = len(entry.request.prompt)
                    self._metrics.looked_up_prefix(num_prompt, event.num_cached_tokens)
                gap_s = entry.add_token(event, now_s)
                if gap_s is not None:
                    self._metrics.observe_token_gap(gap_s)
            if event.finish_reason is not None:
                entry.num_open -= 1
                if entry.num_open == 0:
                    self._finish(entry, event, now_s)

    def _finish(self, entry: _Open, event: TokenEvent, now_s: float) -> None:
        """Write the record. Choices run side by side, so the longest one speaks for the request."""
        request = entry.request
        del self._open[request.request_id]
        longest = max(entry.num_tokens, key=entry.num_tokens.__getitem__, default=0)
        record = RequestRecord(
            request_id=request.request_id,
            model=request.model,
            versions=tuple(entry.versions),
            arrived_at_s=request.arrived_at_s,
            admitted_at_s=entry.admitted_at_s,
            first_token_at_s=entry.first_token_at_s,
            last_token_at_s=entry.last_token_at_s.get(longest),
            num_prompt_tokens=len(request.prompt),
            num_output_tokens=entry.num_tokens.get(longest, 0),
            max_gap_s=entry.max_gap_s,
            finish_reason=event.finish_reason,
            outcome=_outcome(event),
            error=None if event.error is None else str(event.error),
            ended_at_s=now_s,
        )
        self._metrics.observe_request(record)
        self._traces.request_ended(record, request.traceparent, now_s)
        self.num_finished += 1
        self.num_mixed += record.is_mixed
        self.num_failed += record.outcome == "failed"
        if record.outcome == "completed":
            (self._credit.met if record.met(self._objectives) else self._credit.missed)()


def _outcome(event: TokenEvent) -> Outcome:
    if event.finish_reason is FinishReason.ABORT:
        return "aborted"
    if event.finish_reason is FinishReason.ERROR:
        if isinstance(event.error, QueueFullError | CapacityError):
            return "rejected"
        is_mistake = isinstance(event.error, RequestError | UnknownAdapterError)
        return "refused" if is_mistake else "failed"
    return "completed"
