"""Files, jobs and feedback through the front: each belongs to one replica, whose data it is."""

import json
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from collm.errors import RequestError
from collm.server.front.descriptions import fields_of
from collm.server.front.forms import placed_form
from collm.server.front.front import front_of
from collm.server.front.gateway import Gateway
from collm.server.front.ids import replica_of
from collm.server.front.listings import list_merged
from collm.server.front.placement import REPLICA, check_replica, place, split_query
from collm.server.multipart import FORM_OVERHEAD_BYTES
from collm.server.parsing import read_body

router = APIRouter()

_FILES = "/v1/files"
_JOBS = "/v1/fine_tuning/jobs"
_FEEDBACK = "/v1/feedback"


@router.post(_FILES)
async def upload_file(http: Request) -> Response:
    """Keep a training file on the replica that ``replica`` names, or on the least busy one."""
    front = front_of(http)
    max_bytes = front.config.max_file_bytes + FORM_OVERHEAD_BYTES
    async with placed_form(http, max_bytes) as form:
        replica_id = await place(front, form.named)
        # The form is gone behind this block; the answer is short.
        reply = await Gateway(front, http).ask(replica_id, form.call)
    return reply.response()


@router.get(_FILES)
async def list_files(http: Request) -> Response:
    """List the files of all replicas, newest first unless asked otherwise."""
    return await _list(http, _FILES, 10_000)


@router.get(_JOBS)
async def list_jobs(http: Request) -> Response:
    """List the jobs of all replicas, newest first."""
    return await _list(http, _JOBS, 20)


@router.get(_FEEDBACK)
async def list_feedback(http: Request) -> Response:
    """List the feedback on all replicas' answers, newest first."""
    return await _list(http, _FEEDBACK, 20)


async def _list(http: Request, path: str, default_limit: int) -> Response:
    gateway = Gateway(front_of(http), http)
    named, query = split_query(http)
    if named is not None:
        check_replica(front_of(http), named)
        return await gateway.relay(named, gateway.call(query=query))
    return await list_merged(gateway, path, query, default_limit=default_limit)


@router.post(_JOBS)
async def create_job(http: Request) -> Response:
    """Start a job where its training file is, or where ``replica`` says."""
    front, gateway = front_of(http), Gateway(front_of(http), http)
    named, query = split_query(http)
    body = await read_body(http, front.config.max_body_bytes)
    fields = fields_of(body)
    if REPLICA in fields:
        named = str(fields.pop(REPLICA))
        body = json.dumps(fields).encode()
    if named is not None:
        check_replica(front, named)
    homes = [named] if named is not None else []
    for name in ("training_file", "validation_file"):
        if isinstance(fields.get(name), str):
            homes += await _home(gateway, fields[name])
    if len(set(homes)) > 1:
        message = f"A job and its files must be on one replica; these are on {', '.join(homes)}."
        raise RequestError(message, param="training_file", code="invalid_value")
    home = homes[0] if homes else await place(front, None)
    return await gateway.relay(home, gateway.call(body, query=query))


async def _home(gateway: Gateway, file_id: str) -> list[str]:
    """Return the replica that holds a file, or nothing for a file that is nowhere."""
    home = replica_of(file_id)
    if home is not None and home in gateway.known_ids:
        return [home]
    reply = await gateway.find(file_id, f"{_FILES}/{quote(file_id, safe='')}")
    return [reply.replica_id] if reply is not None and reply.is_ok else []


@router.post(_FEEDBACK)
async def add_feedback(http: Request) -> Response:
    """Tell the replica that answered what a user thinks of it."""
    front, gateway = front_of(http), Gateway(front_of(http), http)
    body = await read_body(http, front.config.max_body_bytes)
    response_id = fields_of(body).get("response_id")
    return await gateway.relay_home(str(response_id), gateway.call(body))


@router.get(_FILES + "/{object_id}")
@router.get(_FILES + "/{object_id}/content")
@router.get(_JOBS + "/{object_id}")
@router.get(_JOBS + "/{object_id}/events")
@router.get(_JOBS + "/{object_id}/checkpoints")
@router.get(_FEEDBACK + "/{object_id}")
async def show(http: Request, object_id: str) -> Response:
    """Show what the replica that holds it shows."""
    gateway = Gateway(front_of(http), http)
    return await gateway.relay_home(object_id, gateway.call())


@router.delete(_FILES + "/{object_id}")
@router.delete(_FEEDBACK + "/{object_id}")
@router.post(_JOBS + "/{object_id}/cancel")
@router.post(_JOBS + "/{object_id}/pause")
@router.post(_JOBS + "/{object_id}/resume")
async def change(http: Request, object_id: str) -> Response:
    """Have the replica that holds it delete it, or change its state."""
    gateway = Gateway(front_of(http), http)
    body = await read_body(http, front_of(http).config.max_body_bytes)
    return await gateway.relay_home(object_id, gateway.call(body))
