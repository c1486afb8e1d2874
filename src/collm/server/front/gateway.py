"""Calls that are no generation: to the replica that holds a thing, to whoever has it, to all."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from collm.server.front.calls import Call, make_call, passed_headers
from collm.server.front.errors import NoReplicaError, UpstreamError
from collm.server.front.framing import ResponseHead
from collm.server.front.front import Front
from collm.server.front.ids import replica_of
from collm.server.front.pool import Exchange
from collm.server.front.relay import RelayedResponse

READ_TIMEOUT_S = 5.0
"""How long a replica may take for its part of a list; without it, its part is missing."""
_NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Reply:
    """A replica's whole answer."""

    replica_id: str
    head: ResponseHead
    body: bytes

    @property
    def is_ok(self) -> bool:
        """Whether it did what was asked."""
        return self.head.status < 400

    @property
    def is_json(self) -> bool:
        """Whether it says that it is JSON."""
        return self.head.get(b"content-type").startswith(b"application/json")

    def json(self) -> Any:
        """Return the parsed body; raises ``UpstreamError`` if it is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise UpstreamError(f"replica {self.replica_id} answers with no JSON") from error

    def response(self) -> Response:
        """Return it as it goes to the client."""
        response = Response(self.body, status_code=self.head.status)
        response.raw_headers = [
            *passed_headers(self.head, self.replica_id),
            (b"content-length", b"%d" % len(self.body)),
        ]
        return response


class Gateway:
    """One client's way to the replicas.

    Args:
        front: Whose replicas are asked.
        http: The client's call.
    """

    def __init__(self, front: Front, http: Request) -> None:
        self._front = front
        self._http = http

    @property
    def live_ids(self) -> list[str]:
        """The replicas that answer, by name; raises ``NoReplicaError`` when there is none."""
        ids = sorted(self._front.registry.table)
        if not ids:
            raise NoReplicaError("No replica can answer now; try again later.")
        return ids

    @property
    def known_ids(self) -> list[str]:
        """The replicas there are, live or not, by name."""
        return list(self._front.registry.liveness())

    def missing(self, answered: Iterable[str]) -> list[str]:
        """Return the replicas, live or not, that are not among these."""
        return sorted(set(self.known_ids).difference(answered))

    def call(self, body: bytes = b"", *, query: str | None = None) -> Call:
        """Return the client's call as it goes to a replica, with another query if one is given."""
        url = self._http.url
        asked = url.query if query is None else query
        path = self._http.scope["raw_path"].decode("ascii")
        target = f"{path}?{asked}" if asked else path
        return make_call(self._http.method, target, self._http.scope["headers"], body)

    async def relay(self, replica_id: str, call: Call) -> Response:
        """Return what a replica answers, passed on as it comes; raises ``NoReplicaError``."""
        return RelayedResponse(await self._start(replica_id, call), replica_id)

    async def relay_home(self, object_id: str, call: Call) -> Response:
        """Return the answer of the replica that an id names; if it names none, of who knows it."""
        home = replica_of(object_id)
        if home is not None and home in self.known_ids:
            return await self.relay(home, call)
        return await self.relay_found(call)

    async def relay_found(self, call: Call) -> Response:
        """Return the first answer of a replica that is no 404, or the last 404.

        Saying 404, a replica has changed nothing, so that any call may be made in turn.
        """
        *others, last = self.live_ids
        for replica_id in others:
            exchange = await self._start(replica_id, call)
            if exchange.head.status != _NOT_FOUND:
                return RelayedResponse(exchange, replica_id)
            exchange.close()
        return await self.relay(last, call)

    async def find(self, object_id: str, path: str) -> Reply | None:
        """Return an object as its replica shows it, whatever its id says.

        Args:
            object_id: Names its replica, or else all are asked.
            path: Where each replica shows it.

        Returns:
            The answer of the replica that has it, or a 404 if none has; ``None`` if none answers.
        """
        home, live_ids = replica_of(object_id), self.live_ids
        ids = [home] if home is not None and home in live_ids else live_ids
        replies, _ = await self.ask_each(ids, make_call("GET", path))
        found = [reply for reply in replies if reply.is_ok]
        return next(iter(found or replies), None)

    async def ask(self, replica_id: str, call: Call) -> Reply:
        """Return a replica's whole answer; raises ``NoReplicaError``."""
        exchange = await self._start(replica_id, call)
        try:
            return Reply(replica_id, exchange.head, await exchange.read_all())
        except UpstreamError as error:
            raise _unreachable(replica_id, error) from error
        finally:
            exchange.close()

    async def ask_each(
        self, replica_ids: Iterable[str], call: Call, *, timeout_s: float | None = READ_TIMEOUT_S
    ) -> tuple[list[Reply], list[str]]:
        """Return these replicas' answers, in the same order, and who gave none in time."""

        async def ask_one(replica_id: str) -> Reply | None:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self.ask(replica_id, call)
            except (NoReplicaError, TimeoutError):
                return None

        ids = list(replica_ids)
        found = await asyncio.gather(*map(ask_one, ids))
        replies = [reply for reply in found if reply is not None]
        return replies, [name for name, reply in zip(ids, found, strict=True) if reply is None]

    async def _start(self, replica_id: str, call: Call) -> Exchange:
        try:
            return await self._front.start(replica_id, call)
        except UpstreamError as error:
            raise _unreachable(replica_id, error) from error


def _unreachable(replica_id: str, error: UpstreamError) -> NoReplicaError:
    return NoReplicaError(f"The replica '{replica_id}' does not answer: {error}.")
