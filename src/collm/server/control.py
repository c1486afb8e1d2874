"""``/control``: what a cluster's front asks of a replica. All but the state needs its secret."""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import JSONResponse, Response

from collm.cluster.snapshot_json import to_json
from collm.errors import RequestError
from collm.federated.allotment import Allotment
from collm.federated.rounds import GatePlan, Progress, RoundPlan
from collm.server.adapter_files import (
    CONFIG,
    FORM_BYTES,
    MAX_CONFIG_BYTES,
    MAX_FILES,
    WEIGHTS,
    blaming,
    check_size,
    in_own_file,
)
from collm.server.control_schemas import PromoteBody, ReturnBody
from collm.server.multipart import check_fields, file_of, read_form, text_of
from collm.server.parsing import read_as, read_body
from collm.server.service import Service, service_of
from collm.types import BASE

T = TypeVar("T")
_METADATA = "metadata"


def _require_front(request: Request) -> None:
    """Raise unless the caller knows the cluster's secret."""
    secret = service_of(request).control_secret
    if secret is None:
        raise HTTPException(HTTPStatus.FORBIDDEN, "This replica has no front to obey.")
    given = request.headers.get("authorization", "").encode()
    if not secrets.compare_digest(given, f"Bearer {secret}".encode()):
        raise HTTPException(
            HTTPStatus.UNAUTHORIZED,
            "The cluster's secret is needed, as a bearer token.",
            headers={"www-authenticate": "Bearer"},
        )


public = APIRouter()
router = APIRouter(dependencies=[Depends(_require_front)])


@public.get("/control/state")
async def show_state(request: Request) -> Response:
    """Return how the replica stands, as a router needs it."""
    service = service_of(request)
    service.require_alive()
    ratio = service.prompt_ratio
    snapshot = replace(
        service.rounds.state(),
        bytes_per_token=ratio.bytes_per_token,
        num_template_tokens=ratio.num_template_tokens,
    )
    return JSONResponse(to_json(snapshot))


@router.post("/control/allocation")
async def follow_allocation(request: Request) -> Response:
    """Give credit, time and sizes of steps as allotted; a repetition renews it."""
    service = _alive(request)
    allotment = await _read(request, Allotment.from_json)
    service.rounds.follow(allotment)
    return JSONResponse({"number": allotment.number}, HTTPStatus.ACCEPTED)


@router.post("/control/rounds")
async def start_round(request: Request) -> Response:
    """Train for a round; a repetition changes nothing."""
    service = _alive(request)
    await service.rounds.start_round(await _read(request, RoundPlan.from_json))
    return JSONResponse({"status": "training"}, HTTPStatus.ACCEPTED)


@router.get("/control/rounds/{adapter}/{number}")
async def show_round(request: Request, adapter: str, number: int) -> Response:
    """Say how far a round's training is."""
    progress = _alive(request).rounds.round_progress(adapter, number)
    return JSONResponse(_progress(progress, "training", lambda report: report.to_json()))


@router.post("/control/rounds/{adapter}/{number}/finish")
async def finish_round(request: Request, adapter: str, number: int) -> Response:
    """Have a round report what there is, soon."""
    await _alive(request).rounds.finish_round(adapter, number)
    return JSONResponse({"status": "finishing"}, HTTPStatus.ACCEPTED)


@router.get("/control/rounds/{adapter}/{number}/update")
async def download_update(request: Request, adapter: str, number: int) -> Response:
    """Download what was trained for a round, as a safetensors file."""
    content = await _alive(request).rounds.update(adapter, number)
    return Response(content, media_type="application/octet-stream")


@router.put("/control/versions/{version}")
async def publish_version(request: Request, version: str) -> Response:
    """Keep a version under the name that the front gave it."""
    service = _alive(request)
    max_bytes = service.config.max_adapter_bytes + FORM_BYTES
    async with read_form(request, max_bytes, max_files=MAX_FILES) as form:
        check_fields(form, texts=(_METADATA,), files=(CONFIG, WEIGHTS))
        metadata = _texts(text_of(form, _METADATA)) if _METADATA in form else {}
        config, weights = file_of(form, CONFIG), file_of(form, WEIGHTS)
        check_size(CONFIG, config.size, MAX_CONFIG_BYTES)
        check_size(WEIGHTS, weights.size, service.config.max_adapter_bytes)
        content = await config.read()
        async with in_own_file(weights.file) as path:
            with blaming(WEIGHTS):
                await service.rounds.publish(version, content, path, metadata)
    return JSONResponse({"version": version})


@router.post("/control/promote")
async def promote(request: Request) -> Response:
    """Serve a version; answered when new requests get it."""
    service = _alive(request)
    body = await read_as(PromoteBody, request, service.config.max_body_bytes)
    info = await service.rounds.promote(body.version, body.reason, body.numbers, body.cause)
    return JSONResponse({"version": info.version, "is_active": info.is_active})


@router.post("/control/return_to_base")
async def return_to_base(request: Request) -> Response:
    """Serve the base under an adapter's name; answered when new requests get it."""
    service = _alive(request)
    body = await read_as(ReturnBody, request, service.config.max_body_bytes)
    await service.rounds.return_to_base(body.adapter, body.reason, body.numbers, body.cause)
    return JSONResponse({"adapter": body.adapter, "version": BASE})


@router.post("/control/gate")
async def start_gate(request: Request) -> Response:
    """Compare a candidate with what is served; a repetition changes nothing."""
    service = _alive(request)
    await service.rounds.start_gate(await _read(request, GatePlan.from_json))
    return JSONResponse({"status": "evaluating"}, HTTPStatus.ACCEPTED)


@router.get("/control/gate/{adapter}/{number}")
async def show_gate(request: Request, adapter: str, number: int) -> Response:
    """Say how far a round's comparison is."""
    progress = _alive(request).rounds.gate_progress(adapter, number)
    return JSONResponse(_progress(progress, "evaluating", lambda report: report.to_json()))


def _alive(request: Request) -> Service:
    service = service_of(request)
    service.require_alive()
    return service


async def _read(request: Request, read: Callable[[object], T]) -> T:
    """Return a body as what ``read`` makes of it; raises ``RequestError`` or ``RoundError``."""
    body = await read_body(request, service_of(request).config.max_body_bytes)
    return read(_parsed(body, "The request body"))


def _texts(text: str) -> Mapping[str, str]:
    value = _parsed(text, f"'{_METADATA}'")
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise RequestError(f"'{_METADATA}' must be a JSON object of texts.", param=_METADATA)
    return value


def _parsed(text: str | bytes, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{what} must be valid JSON.", code="invalid_json") from error


def _progress(
    progress: Progress[T], under_way: str, to_plain: Callable[[T], Mapping[str, Any]]
) -> dict[str, Any]:
    report, error = progress.report, progress.error
    status = "failed" if error is not None else "finished" if report is not None else under_way
    plain = None if report is None else to_plain(report)
    return {"status": status, "report": plain, "error": error}
