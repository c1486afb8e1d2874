"""Adapters through the front: lists over all replicas, and changes that each of them makes."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from collm.cluster.spreading import Spread
from collm.errors import UnknownAdapterError
from collm.server.adapter_schemas import HistoryQuery
from collm.server.admin_key import ADMIN
from collm.server.errors import ErrorReply
from collm.server.front.descriptions import fields_of
from collm.server.front.forms import placed_form
from collm.server.front.front import front_of
from collm.server.front.gateway import Gateway, Reply
from collm.server.front.listings import MISSING_HEADER
from collm.server.front.placement import REPLICA, check_replica, split_query
from collm.server.multipart import FORM_OVERHEAD_BYTES
from collm.server.parsing import parse_query, read_body
from collm.types import VersionId

router = APIRouter()

_NOT_FOUND = 404
_MAX_CONFIG_BYTES = 1024 * 1024


@router.get("/adapters")
async def list_versions(http: Request) -> Response:
    """List the versions on every replica, each row with its replica."""
    return await _list(http, lambda row: (row["adapter"], row["version"], row["replica"]))


@router.get("/adapters/{name}/history")
async def show_history(http: Request, name: str) -> Response:
    """List what every replica decided about an adapter, and for all of them the front.

    Oldest first. Rows of the front's have no replica: candidates of rounds that none ever served.
    """
    asked = {name: value for name, value in http.query_params.items() if name != REPLICA}
    limit = parse_query(HistoryQuery, asked).limit
    refusals = front_of(http).backends.rounds.refusals(name, limit)
    own = [{**asdict(one), "replica": None} for one in refusals]
    return await _list(http, lambda row: (row["decided_at_s"], row["replica"] or ""), limit, own)


async def _list(
    http: Request,
    place: Callable[[dict[str, Any]], Any],
    num_last: int | None = None,
    own: Sequence[dict[str, Any]] = (),
) -> Response:
    """Return the rows of all replicas, and the front's ``own``, each in its place."""
    gateway = Gateway(front_of(http), http)
    named, query = split_query(http)
    if named is not None:
        check_replica(front_of(http), named)
        return await gateway.relay(named, gateway.call(query=query))
    replies, _ = await gateway.ask_each(gateway.live_ids, gateway.call())
    found = [reply for reply in replies if reply.is_ok]
    if replies and not found and not own:
        return replies[0].response()
    rows = [{**row, "replica": reply.replica_id} for reply in found for row in reply.json()["data"]]
    rows = sorted([*rows, *own], key=place)
    shown = rows if num_last is None else rows[-num_last:]
    missing = gateway.missing(reply.replica_id for reply in replies)
    return JSONResponse({"object": "list", "data": shown}, headers=_said(missing))


@router.get("/adapters/export")
async def export(http: Request) -> Response:
    """Download a version from a replica that has it."""
    gateway = Gateway(front_of(http), http)
    named, query = split_query(http)
    if named is None:
        return await gateway.relay_found(gateway.call())
    check_replica(front_of(http), named)
    return await gateway.relay(named, gateway.call(query=query))


@router.post("/adapters/rollback", dependencies=ADMIN)
async def roll_back(http: Request) -> Response:
    """Return an adapter to the version before, everywhere; what is learned together stays so."""
    front = front_of(http)
    body = await read_body(http, front.config.max_body_bytes)
    named, _ = split_query(http)
    adapter = fields_of(body).get("adapter")
    rounds = front.backends.rounds
    if named is not None or not isinstance(adapter, str) or adapter not in rounds.status():
        return await _change(http, body, some_suffice=True)
    return _spread(adapter, await rounds.roll_back(adapter))


@router.post("/adapters/promote", dependencies=ADMIN)
async def promote(http: Request) -> Response:
    """Serve a version wherever it is; one that was learned together everywhere, and so it stays."""
    front = front_of(http)
    body = await read_body(http, front.config.max_body_bytes)
    named, _ = split_query(http)
    version = fields_of(body).get("version")
    if named is None and isinstance(version, str):
        with contextlib.suppress(UnknownAdapterError):  # replicas have versions of their own
            spread = await front.backends.rounds.promote(VersionId(version))
            return _spread(version.partition("@")[0], spread)
    return await _change(http, body, some_suffice=True)


@router.post("/adapters/pin", dependencies=ADMIN)
@router.post("/adapters/unpin", dependencies=ADMIN)
async def change_version(http: Request) -> Response:
    """Change a version on every replica that has it, or on the one that ``replica`` names."""
    body = await read_body(http, front_of(http).config.max_body_bytes)
    return await _change(http, body, some_suffice=True)


@router.post("/v1/load_lora_adapter", dependencies=ADMIN)
@router.post("/v1/unload_lora_adapter", dependencies=ADMIN)
async def change_names(http: Request) -> Response:
    """Serve a name, or cease to, on every replica, or on the one that ``replica`` names."""
    body = await read_body(http, front_of(http).config.max_body_bytes)
    return await _change(http, body, some_suffice=False)


def _spread(adapter: str, spread: Spread) -> Response:
    """Return how far a change of what is learned together got."""
    answer = {"adapter": adapter, "version": spread.version, "is_active": True}
    return JSONResponse({**answer, "replicas": spread.reached, "missed": dict(spread.missed)})


async def _change(http: Request, body: bytes, *, some_suffice: bool) -> Response:
    front, gateway = front_of(http), Gateway(front_of(http), http)
    named, query = split_query(http)
    call = gateway.call(body, query=query)
    if named is not None:
        check_replica(front, named)
        return await gateway.relay(named, call)
    replies, silent = await gateway.ask_each(gateway.live_ids, call, timeout_s=None)
    return _summary(replies, silent, gateway, some_suffice=some_suffice)


@router.post("/adapters/import", dependencies=ADMIN)
async def import_adapter(http: Request) -> Response:
    """Publish an uploaded adapter on every replica, or on the one that ``replica`` names."""
    front, gateway = front_of(http), Gateway(front_of(http), http)
    max_bytes = front.config.max_adapter_bytes + _MAX_CONFIG_BYTES + FORM_OVERHEAD_BYTES
    replies, silent = [], []
    async with placed_form(http, max_bytes) as form:
        if form.named is not None:
            check_replica(front, form.named)
            return (await gateway.ask(form.named, form.call)).response()
        for replica_id in gateway.live_ids:  # in turn: they all read the one form
            reply, none = await gateway.ask_each([replica_id], form.call, timeout_s=None)
            replies += reply
            silent += none
    return _summary(replies, silent, gateway, some_suffice=False)


def _summary(
    replies: Sequence[Reply], silent: Sequence[str], gateway: Gateway, *, some_suffice: bool
) -> Response:
    """Return one answer for all: an error unless everyone did it who could.

    Args:
        replies: What the replicas said.
        silent: Those that were asked and lost before they said anything.
        gateway: Knows who was not asked.
        some_suffice: Whether a replica may lack what is to be changed, if another has it.
    """
    done = [reply for reply in replies if reply.is_ok]
    failed = [
        reply
        for reply in replies
        if not reply.is_ok and not (some_suffice and reply.head.status == _NOT_FOUND)
    ]
    if not done and (replies or not silent):
        return (failed or replies)[0].response()
    if failed or silent:
        return _partly(done, failed, silent)
    missing = gateway.missing(reply.replica_id for reply in replies)
    if not done[0].is_json:  # a sentence, as vLLM has it
        return done[0].response()
    body = {**done[0].json(), "replicas": [reply.replica_id for reply in done]}
    return JSONResponse(body, headers=_said(missing))


def _partly(done: Sequence[Reply], failed: Sequence[Reply], silent: Sequence[str]) -> Response:
    """Return an error that says who did it and who did not."""
    failures = [f"{reply.replica_id}: {_message(reply)}" for reply in failed]
    failures += [f"{replica_id}: was lost before it answered" for replica_id in silent]
    names = ", ".join(reply.replica_id for reply in done) or "none"
    status = failed[0].head.status if failed else 503
    message = f"Not done everywhere. {'; '.join(failures)}. Done on: {names}."
    kind = "server_error" if status >= 500 else "invalid_request_error"
    reply = ErrorReply(status, message, kind, None, "partly_done")
    return JSONResponse(reply.body(), status_code=status)


def _message(reply: Reply) -> str:
    body = reply.json() if reply.is_json else None
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or f"status {reply.head.status}")


def _said(missing: Sequence[str]) -> dict[str, str] | None:
    return {MISSING_HEADER: ",".join(missing)} if missing else None
