"""``/v1/feedback``: what users say about answers, which adapters learn from."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from collm.server.adapter_backend import FeedbackRequest
from collm.server.adapter_schemas import FeedbackBody, FeedbackQuery
from collm.server.listing import list_response
from collm.server.openapi import body_schema, query_schema
from collm.server.parsing import parse_query, read_as
from collm.server.service import service_of
from collm.store.feedback import Feedback

router = APIRouter()


def _object(feedback: Feedback) -> dict[str, Any]:
    """Return what a client sees: never the text, which the client or its users wrote."""
    return {
        "id": feedback.feedback_id,
        "object": "feedback",
        "response_id": feedback.response_id,
        "choice": feedback.choice,
        "adapter": feedback.adapter,
        "version": feedback.version,
        "rating": feedback.rating,
        "weight": feedback.weight,
        "created_at": int(feedback.created_at_s),
        "is_deleted": feedback.is_deleted,
    }


@router.post("/v1/feedback", openapi_extra=body_schema(FeedbackBody))
async def add_feedback(request: Request) -> Response:
    """Say how good an answer was, or what a better one is."""
    service = service_of(request)
    body = await read_as(FeedbackBody, request, service.config.max_body_bytes)
    asked = FeedbackRequest(
        response_id=body.response_id, choice=body.choice, answer=body.answer, rating=body.rating
    )
    return JSONResponse(_object(await service.feedback.add(asked)))


@router.get("/v1/feedback", openapi_extra=query_schema(FeedbackQuery))
async def list_feedback(request: Request) -> Response:
    """List feedback, newest first."""
    query = parse_query(FeedbackQuery, request.query_params)
    page = await service_of(request).feedback.list(
        adapter=query.adapter, after=query.after, limit=query.limit
    )
    return list_response(page, _object)


@router.get("/v1/feedback/{feedback_id}")
async def show_feedback(request: Request, feedback_id: str) -> Response:
    """Show one piece of feedback."""
    return JSONResponse(_object(await service_of(request).feedback.get(feedback_id)))


@router.delete("/v1/feedback/{feedback_id}")
async def delete_feedback(request: Request, feedback_id: str) -> Response:
    """Wipe the text and never train on it again."""
    deleted = await service_of(request).feedback.delete(feedback_id)
    return JSONResponse({"id": deleted.feedback_id, "object": "feedback", "deleted": True})
