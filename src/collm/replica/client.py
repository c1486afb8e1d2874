"""The step loop as asyncio sees it: requests in, streams of token events out."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from collm.clock import Clock
from collm.metrics.exporter import ReplicaMetrics
from collm.model.tokenizer import Tokenizer
from collm.replica.board import Board
from collm.replica.inbox import Abort, Finish, Inbox, Submit
from collm.types import BASE, ModelCard, Request, RequestId, TokenEvent, VersionInfo


class Deliveries:
    """Brings events from the loop's thread to the streams of an event loop.

    One wake-up of the event loop per step, however many requests the step served.
    """

    def __init__(self) -> None:
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[RequestId, asyncio.Queue[TokenEvent | None]] = {}
        self._has_ended = False

    def open(self, request_id: RequestId) -> "asyncio.Queue[TokenEvent | None]":
        """Return the queue that a request's events will come to; called in the event loop.

        ``None`` in it says that no more will come.
        """
        self._event_loop = asyncio.get_running_loop()
        queue: asyncio.Queue[TokenEvent | None] = asyncio.Queue()
        self._streams[request_id] = queue
        if self._has_ended:
            queue.put_nowait(None)
        return queue

    def close(self, request_id: RequestId) -> None:
        """Drop what still comes for a request."""
        self._streams.pop(request_id, None)

    def publish(self, events: list[TokenEvent]) -> None:
        """Pass on a step's events; called in the loop's thread, never blocks."""
        self._call(lambda: self._deliver(events))

    def end(self) -> None:
        """Tell all streams, later ones as well, that nothing comes any more; as ``publish``."""
        self._has_ended = True
        self._call(self._end_streams)

    def _call(self, callback: Callable[[], None]) -> None:
        if self._event_loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed: nobody reads any more
                self._event_loop.call_soon_threadsafe(callback)

    def _end_streams(self) -> None:
        for queue in self._streams.values():
            queue.put_nowait(None)

    def _deliver(self, events: list[TokenEvent]) -> None:
        for event in events:
            queue = self._streams.get(event.request_id)
            if queue is not None:
                queue.put_nowait(event)


class TokenStream:
    """Events of one request until all its choices have ended; opened before it is submitted."""

    def __init__(self, request: Request, deliveries: Deliveries, inbox: Inbox) -> None:
        self._request_id = request.request_id
        self._num_open = request.n
        self._deliveries = deliveries
        self._inbox = inbox
        self._queue = deliveries.open(request.request_id)

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self

    async def __anext__(self) -> TokenEvent:
        """Wait for the next event."""
        event = await self._queue.get() if self._num_open else None
        if event is None:
            self._num_open = 0
            self._deliveries.close(self._request_id)
            raise StopAsyncIteration
        if event.finish_reason is not None:
            self._num_open -= 1
            if self._num_open == 0:
                self._deliveries.close(self._request_id)
        return event

    def finish(self, choice: int) -> None:
        """End one choice with ``FinishReason.STOP``."""
        self._inbox.put(Finish(self._request_id, choice))

    async def aclose(self) -> None:
        """Abort what still runs."""
        if self._num_open:
            self._num_open = 0
            self._deliveries.close(self._request_id)
            self._inbox.put(Abort(self._request_id))


class ReplicaClient:
    """Everything that HTTP needs of a replica; lives in the event loop's thread.

    Args:
        base_model: Name of the bare base model.
        max_model_len: Most tokens of prompt and output together.
        tokenizer: The base model's.
        inbox: Where the loop takes its messages from.
        deliveries: Where the loop puts its events.
        board: What the loop shows.
        metrics: What the loop counts.
        thread: The loop's thread.
        clock: The loop's clock.
    """

    def __init__(
        self,
        *,
        base_model: str,
        max_model_len: int,
        tokenizer: Tokenizer,
        inbox: Inbox,
        deliveries: Deliveries,
        board: Board,
        metrics: ReplicaMetrics,
        thread: threading.Thread,
        clock: Clock,
    ) -> None:
        self.base_model = base_model
        self.max_model_len = max_model_len
        self.tokenizer = tokenizer
        self._inbox = inbox
        self._deliveries = deliveries
        self._board = board
        self._metrics = metrics
        self._thread = thread
        self._clock = clock

    @property
    def is_alive(self) -> bool:
        """Whether the step loop still runs."""
        return self._thread.is_alive()

    def now_s(self) -> float:
        """Return the loop's monotonic time."""
        return self._clock.now_s()

    def submit(self, *requests: Request) -> tuple[TokenStream, ...]:
        """Start the requests of one call, which one version serves; closing a stream aborts its."""
        streams = tuple(TokenStream(one, self._deliveries, self._inbox) for one in requests)
        self._inbox.put(Submit(requests))
        return streams

    def abort(self, request_id: RequestId) -> None:
        """End a request's choices with ``FinishReason.ABORT``."""
        self._inbox.put(Abort(request_id))

    def models(self) -> tuple[ModelCard, ...]:
        """Return everything that a request may name now."""
        view = self._board.view
        active = {info.adapter: info.version for info in view.versions if info.is_active}
        versions = {str(info.version): info for info in view.versions}
        cards = []
        for name in view.names:
            version = versions[name].version if name in versions else active.get(name, BASE)
            parent = None if name == self.base_model else self.base_model
            cards.append(ModelCard(id=name, version=version, parent=parent))
        return tuple(cards)

    def versions(self) -> tuple[VersionInfo, ...]:
        """Return the versions on the device."""
        return self._board.view.versions

    def snapshot(self) -> Mapping[str, Any]:
        """Return live figures, ready for JSON."""
        return self._board.view.numbers

    def metrics_text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return self._metrics.render()
