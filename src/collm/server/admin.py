"""Routes about the server itself: models, adapter versions, health, metrics, live numbers."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from collm.errors import UnknownAdapterError
from collm.server.openapi import body_schema
from collm.server.parsing import read_as
from collm.server.schemas import PromoteBody, RollbackBody
from collm.server.service import Service, service_of
from collm.types import ModelCard

router = APIRouter()

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _model(service: Service, card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": service.started_at,
        "owned_by": "collm",
        "root": card.id if card.parent is None else card.parent,
        "parent": card.parent,
        "version": card.version,
        "max_model_len": service.replica.max_model_len,
    }


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """List everything that a request may put in ``model``."""
    service = service_of(request)
    data = [_model(service, card) for card in service.replica.models()]
    return JSONResponse({"object": "list", "data": data})


@router.get("/v1/models/{model_id:path}")
async def show_model(request: Request, model_id: str) -> Response:
    """Show one of the models."""
    service = service_of(request)
    cards = {card.id: card for card in service.replica.models()}
    if model_id not in cards:
        names = ", ".join(cards)
        raise UnknownAdapterError(f"The model '{model_id}' does not exist; being served: {names}.")
    return JSONResponse(_model(service, cards[model_id]))


@router.get("/health")
async def show_health(request: Request) -> Response:
    """Answer 200 while the replica's step loop runs, 503 after."""
    service_of(request).require_alive()
    return JSONResponse({"status": "ok"})


@router.get("/metrics")
async def show_metrics(request: Request) -> Response:
    """Return metrics in Prometheus' text format."""
    return Response(service_of(request).replica.metrics_text(), media_type=_METRICS_TYPE)


@router.get("/control/snapshot")
async def show_snapshot(request: Request) -> Response:
    """Return the replica's live numbers."""
    return JSONResponse(dict(service_of(request).replica.snapshot()))


@router.get("/adapters")
async def list_versions(request: Request) -> Response:
    """List the published adapter versions."""
    versions = service_of(request).replica.versions()
    return JSONResponse({"object": "list", "data": [asdict(version) for version in versions]})


@router.post("/adapters/promote", openapi_extra=body_schema(PromoteBody))
async def promote(request: Request) -> Response:
    """Make a version its adapter's active one; requests in flight keep theirs."""
    service = service_of(request)
    body = await read_as(PromoteBody, request, service.config.max_body_bytes)
    return JSONResponse(asdict(await service.replica.promote(body.version)))


@router.post("/adapters/rollback", openapi_extra=body_schema(RollbackBody))
async def roll_back(request: Request) -> Response:
    """Return an adapter to the version before its active one."""
    service = service_of(request)
    body = await read_as(RollbackBody, request, service.config.max_body_bytes)
    return JSONResponse(asdict(await service.replica.rollback(body.adapter)))
