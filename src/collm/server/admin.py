"""Routes about the server itself: models, health, metrics, live numbers."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from collm.errors import UnknownAdapterError
from collm.metrics.exporter import CONTENT_TYPE
from collm.server.service import Service, service_of
from collm.types import ModelCard

router = APIRouter()


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
    return Response(service_of(request).replica.metrics_text(), media_type=CONTENT_TYPE)


@router.get("/control/snapshot")
async def show_snapshot(request: Request) -> Response:
    """Return the replica's live numbers."""
    return JSONResponse(dict(service_of(request).replica.snapshot()))
