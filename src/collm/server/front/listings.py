"""Lists of things that live on several replicas, as one."""

import asyncio
import heapq
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from fastapi.responses import JSONResponse, Response

from collm.server.front.calls import make_call
from collm.server.front.errors import NoReplicaError
from collm.server.front.gateway import READ_TIMEOUT_S, Gateway, Reply

MISSING_HEADER = "x-collm-missing"
"""Response header that names the replicas whose part of an answer is not in it."""

_Key = tuple[int, str]
"""Place in a merged list: by age, then by replica, where the order is the replica's own."""


class _RefusedError(Exception):
    """A replica does not answer the question itself, and says why."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.head.status)
        self.reply = reply


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What the client asked for."""

    path: str
    filters: Mapping[str, str]
    limit: int
    after: str | None
    is_oldest_first: bool

    def key(self, row: Mapping[str, Any], replica_id: str) -> _Key:
        """Return a row's place."""
        created_at = int(row.get("created_at", 0))
        return (created_at if self.is_oldest_first else -created_at), replica_id


@dataclass(frozen=True, slots=True)
class _Cursor:
    """The row that the page before ended with."""

    home: str
    key: _Key


@dataclass(frozen=True, slots=True)
class _Part:
    """One replica's rows of the page, in order, and whether it has more."""

    replica_id: str
    rows: Sequence[dict[str, Any]]
    has_more: bool


async def list_merged(gateway: Gateway, path: str, query: str, *, default_limit: int) -> Response:
    """Return one page over all replicas, newest first unless the client asked otherwise.

    Args:
        gateway: The way to the replicas.
        path: The list's, on each of them; a row's own is below it.
        query: The client's, with what the replicas filter by.
        default_limit: Rows of a page when the client does not say.
    """
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    limit = _as_limit(parameters.get("limit"), default_limit)
    live_ids = gateway.live_ids
    if limit is None:
        return await gateway.relay(live_ids[0], gateway.call())  # which says what is allowed
    question = _Question(
        path=path,
        filters={key: parameters[key] for key in parameters if key not in ("limit", "after")},
        limit=limit,
        after=parameters.get("after"),
        is_oldest_first=parameters.get("order") == "asc",
    )
    try:
        cursor = await _find_cursor(gateway, question)
        found = await asyncio.gather(
            *(_in_time(_part(gateway, name, question, cursor)) for name in live_ids)
        )
    except _RefusedError as error:
        return error.reply.response()
    parts = [part for part in found if part is not None]
    if not parts:
        raise NoReplicaError("No replica answered in time; try again later.")
    return _page(question, parts, gateway.missing(part.replica_id for part in parts))


def _as_limit(text: str | None, default: int) -> int | None:
    """Return the rows of a page, or ``None`` for what no replica will accept."""
    if text is None:
        return default
    try:
        return int(text) if int(text) > 0 else None
    except ValueError:
        return None


async def _in_time(part: Coroutine[Any, Any, _Part]) -> _Part | None:
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await part
    except (NoReplicaError, TimeoutError):
        return None


async def _find_cursor(gateway: Gateway, question: _Question) -> _Cursor | None:
    """Find the row to go on after; raises ``_RefusedError`` if it is nowhere."""
    if question.after is None:
        return None
    path = f"{question.path}/{quote(question.after, safe='')}"
    reply = await gateway.find(question.after, path)
    if reply is None:
        raise NoReplicaError("No replica answered in time; try again later.")
    if not reply.is_ok:
        raise _RefusedError(reply)
    return _Cursor(reply.replica_id, question.key(reply.json(), reply.replica_id))


async def _part(
    gateway: Gateway, replica_id: str, question: _Question, cursor: _Cursor | None
) -> _Part:
    """Read a replica's rows behind the cursor until they fill a page."""
    rows: list[dict[str, Any]] = []
    is_home = cursor is not None and cursor.home == replica_id
    after = question.after if is_home else None
    has_more = True
    while has_more and len(rows) < question.limit:
        page = await _read_page(gateway, replica_id, question, after)
        for row in page["data"]:
            if cursor is None or is_home or question.key(row, replica_id) > cursor.key:
                rows.append({**row, "replica": replica_id})
        has_more = bool(page.get("has_more")) and bool(page["data"])
        after = page["data"][-1]["id"] if page["data"] else None
    return _Part(replica_id, rows, has_more)


async def _read_page(
    gateway: Gateway, replica_id: str, question: _Question, after: str | None
) -> dict[str, Any]:
    parameters = {**question.filters, "limit": str(question.limit)}
    if after is not None:
        parameters["after"] = after
    reply = await gateway.ask(
        replica_id, make_call("GET", f"{question.path}?{urlencode(parameters)}")
    )
    if not reply.is_ok:
        raise _RefusedError(reply)
    page: dict[str, Any] = reply.json()
    return page


def _page(question: _Question, parts: Sequence[_Part], missing: Sequence[str]) -> Response:
    def place(row: Mapping[str, Any]) -> _Key:
        return question.key(row, row["replica"])

    rows = list(heapq.merge(*(part.rows for part in parts), key=place))
    data = rows[: question.limit]
    has_more = len(rows) > len(data) or any(part.has_more for part in parts)
    body = {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
    return JSONResponse(body, headers={MISSING_HEADER: ",".join(missing)} if missing else None)
