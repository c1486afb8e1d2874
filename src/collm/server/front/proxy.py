"""The two routes that generate: choose a replica, pass its answer on, try another if it is lost.

Written against ASGI itself: what runs here runs for every token of every stream.
"""

import logging
from dataclasses import dataclass, field

from fastapi import Request
from starlette.types import Receive, Scope, Send

from collm.cluster.lanes import Ticket
from collm.cluster.routes import Choice, RouteRequest, Turned, TurnedReason
from collm.metrics.front import Outcome
from collm.metrics.traces import ProxiedRequest
from collm.server.disconnects import until_disconnect
from collm.server.errors import ClientGoneError, ErrorReply
from collm.server.front.calls import Call, make_call, passed_headers
from collm.server.front.descriptions import describe
from collm.server.front.errors import NoReplicaError, TurnedAwayError, UpstreamError
from collm.server.front.front import Front
from collm.server.front.pool import Exchange
from collm.server.front.relay import (
    EVENT_STREAM,
    send_events,
    send_last_event,
    send_start,
    send_whole,
)
from collm.server.parsing import read_body

_log = logging.getLogger(__name__)

_MAX_ATTEMPTS = 3
"""A request that kills who computes it must not take the whole cluster with it."""
_BUSY = (429, 503)
"""Statuses with which a replica says that another one may do better."""
_GIVEN_UP = Turned(1.0, TurnedReason.NO_REPLICA)
_ENDING = "The server is stopping and ended this answer."


@dataclass(slots=True)
class _Errand:
    """One request on its way to an answer."""

    request: RouteRequest
    call: Call
    send: Send
    arrived_at_s: float
    trace: ProxiedRequest
    failed_at: list[str] = field(default_factory=list)
    """Replicas that were lost, or said no, before anything had been sent to the client."""
    refusal: "_Whole | None" = None
    """The latest no, in its own words."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """An answer that is there as a whole."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class GenerationProxy:
    """Answers a generating route (ASGI).

    Args:
        front: Whose replicas compute the answers.
    """

    def __init__(self, front: Front) -> None:
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call (ASGI); raises ``CollmError`` before anything has been sent."""
        front = self._front
        arrived_at_s = front.clock.now_s()
        body = await read_body(Request(scope, receive), front.config.max_body_bytes)
        path = scope["path"]
        trace = front.backends.traces.proxied(path, scope["headers"])
        call = make_call("POST", path, trace.headers(scope["headers"]), body, is_repeatable=True)
        errand = _Errand(describe(body), call, send, arrived_at_s, trace)
        with front.open_call():
            try:
                await until_disconnect(receive, self._answer(errand))
            except ClientGoneError:
                self._count(errand, Outcome.CLIENT_GONE)
            finally:
                trace.end("failed")  # unless it ended in another way

    async def _answer(self, errand: _Errand) -> None:
        while len(errand.failed_at) < _MAX_ATTEMPTS:
            choice = await self._choose(errand)
            if isinstance(choice, Turned):
                await self._turn_away(errand, choice)
                return
            if await self._attempt(errand, choice):
                return
            errand.failed_at.append(choice.replica_id)
            self._front.metrics.retry(choice.replica_id)
            errand.trace.note("failed", choice.replica_id)
        await self._turn_away(errand, _GIVEN_UP)

    async def _choose(self, errand: _Errand) -> Choice | Turned:
        model, registry = errand.request.model, self._front.registry
        choice = self._route(errand)
        is_lost = registry.lost(model) is not None
        if not is_lost and (isinstance(choice, Choice) or choice.reason is TurnedReason.LATE):
            return choice
        await registry.ask_silent()
        if (home := registry.lost(model)) is not None:  # the others would say that it is unknown
            raise NoReplicaError(
                f"The model '{model}' is at the replica '{home}', which does not answer now; "
                "try again later."
            )
        return self._route(errand)

    def _route(self, errand: _Errand) -> Choice | Turned:
        front = self._front
        return front.backends.router.choose(
            errand.request,
            front.registry.table,
            front.backends.sent,
            front.clock.now_s(),
            errand.failed_at,
        )

    async def _turn_away(self, errand: _Errand, turned: Turned) -> None:
        """Say no: in a replica's own words if one has said so, which tell more."""
        self._count(errand, Outcome.TURNED_AWAY)
        if errand.refusal is not None:
            no = errand.refusal
            await send_whole(errand.send, no.status, no.headers, no.body)
            return
        if turned.reason is TurnedReason.LATE:
            message = "No replica would answer in time now; try again later."
            raise TurnedAwayError(message, turned.retry_after_s)
        lost = f" ({', '.join(errand.failed_at)} failed)" if errand.failed_at else ""
        raise NoReplicaError(f"No replica can answer now{lost}; try again later.")

    async def _attempt(self, errand: _Errand, choice: Choice) -> bool:
        """Return whether the client has been sent an answer, be it good or bad."""
        front = self._front
        ticket = front.backends.sent.add(errand.request, choice, front.clock.now_s())
        exchange: Exchange | None = None
        try:
            errand.trace.note("sent", choice.replica_id)
            exchange = await front.start(choice.replica_id, errand.call)
            is_stream = exchange.head.get(b"content-type").startswith(EVENT_STREAM)
            first = await (exchange.read() if is_stream else exchange.read_all())
            if exchange.head.status in _BUSY:
                headers = passed_headers(exchange.head, choice.replica_id)
                errand.refusal = _Whole(exchange.head.status, headers, first)
                return False
            if exchange.head.status < 400:  # refusing takes no time, and tells nothing of load
                self._note_first_byte(errand, ticket)
                errand.trace.note("first byte", choice.replica_id)
            await self._deliver(errand, choice.replica_id, exchange, first, is_stream=is_stream)
        except UpstreamError as error:
            _log.warning("replica %s: lost before its answer began: %s", choice.replica_id, error)
            if front.is_ending:
                raise NoReplicaError(_ENDING) from error
            return False
        finally:
            front.backends.sent.finished(ticket, front.clock.now_s())
            if exchange is not None:
                exchange.close()
        return True

    def _note_first_byte(self, errand: _Errand, ticket: Ticket) -> None:
        now_s = self._front.clock.now_s()
        self._front.backends.sent.started(ticket, now_s)
        self._front.metrics.first_byte(now_s - errand.arrived_at_s)

    async def _deliver(
        self, errand: _Errand, replica_id: str, exchange: Exchange, first: bytes, *, is_stream: bool
    ) -> None:
        send = errand.send
        if not is_stream:
            headers = passed_headers(exchange.head, replica_id)
            await send_whole(send, exchange.head.status, headers, first)
            self._count(errand, Outcome.ANSWERED)
            return
        await send_start(send, exchange, replica_id)
        try:
            await send_events(send, exchange, first)
            self._count(errand, Outcome.ANSWERED)
        except UpstreamError as error:
            _log.warning("replica %s: lost while answering: %s", replica_id, error)
            await send_last_event(send, self._last_words(replica_id))
            self._count(errand, Outcome.BROKEN)

    def _count(self, errand: _Errand, outcome: Outcome) -> None:
        self._front.metrics.count(outcome)
        errand.trace.end(outcome.value)

    def _last_words(self, replica_id: str) -> ErrorReply:
        if self._front.is_ending:
            return ErrorReply(503, _ENDING, "server_error", None, "unavailable")
        message = (
            f"The replica '{replica_id}' was lost while it answered; what came before this is "
            "all there is of this answer. Send the request again for a new one."
        )
        return ErrorReply(503, message, "server_error", None, "replica_lost")
