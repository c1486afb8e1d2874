"""The one table from errors to HTTP statuses, and error objects as the OpenAI API shapes them."""

import errno
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from collm.errors import (
    AdapterError,
    CapacityError,
    CollmError,
    DiskFullError,
    QueueFullError,
    RequestError,
    RoundError,
    StateError,
    UnknownAdapterError,
    UnknownObjectError,
)

_log = logging.getLogger(__name__)

CLIENT_GONE = 499
"""Status of an answer that nobody reads any more; it reaches logs only."""

_RETRY_AFTER_S = "1"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DISK_FULL = (
    "The server's disk is full, and nothing of this was kept. Free space on it, such as by "
    "deleting files that are no longer needed, and send it again."
)


class BodyTooLargeError(RequestError):
    """The request body is larger than the server accepts."""


class UnavailableError(CollmError):
    """The replica cannot answer: its step loop has ended, or it dropped this answer."""


class ClientGoneError(CollmError):
    """The client closed the connection before its answer was complete."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as a client sees it."""

    status: int
    message: str
    kind: str
    param: str | None = None
    code: str | None = None

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the OpenAI API."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


# The first row that matches decides, so subclasses stand before their parents.
_TABLE: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (ClientGoneError, CLIENT_GONE, "invalid_request_error", "client_gone"),
    (UnavailableError, 503, "server_error", "unavailable"),
    (BodyTooLargeError, 413, "invalid_request_error", "body_too_large"),
    (RequestError, 400, "invalid_request_error", None),
    (UnknownAdapterError, 404, "invalid_request_error", "model_not_found"),
    (UnknownObjectError, 404, "invalid_request_error", "not_found"),
    (RoundError, 422, "invalid_request_error", "round_refused"),
    (StateError, 409, "invalid_request_error", "conflict"),
    (AdapterError, 409, "invalid_request_error", "adapter_conflict"),
    (QueueFullError, 429, "rate_limit_error", "queue_full"),
    (CapacityError, 400, "invalid_request_error", "capacity_exceeded"),
)


def reply_to(error: Exception) -> ErrorReply:
    """Return what to tell the client; an error that is not its fault is logged and stays vague."""
    for kind, status, word, code in _TABLE:
        if isinstance(error, kind):
            param = getattr(error, "param", None)
            return ErrorReply(status, str(error), word, param, getattr(error, "code", None) or code)
    if isinstance(error, DiskFullError) or (isinstance(error, OSError) and error.errno in _FULL):
        _log.error("the disk is full: %s", error)
        status = HTTPStatus.INSUFFICIENT_STORAGE
        return ErrorReply(status, _DISK_FULL, "server_error", None, "disk_full")
    _log.error("unexpected error while answering", exc_info=error)
    message = "The server had an error while answering; its log says more."
    return ErrorReply(500, message, "server_error", None, "internal_error")


def _respond(reply: ErrorReply, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(reply.body(), status_code=reply.status, headers=headers)


async def _on_error(_: Request, error: Exception) -> Response:
    reply = reply_to(error)
    is_busy = reply.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
    return _respond(reply, {"retry-after": _RETRY_AFTER_S} if is_busy else None)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    allowed = (error.headers or {}).get("Allow", "see /openapi.json")
    messages = {
        404: f"There is no route {where}; /openapi.json lists all routes.",
        405: f"{where} is not allowed; allowed: {allowed}.",
    }
    message = messages.get(error.status_code, str(error.detail))
    codes = {404: "unknown_url"}  # as the OpenAI API tells a wrong path from a missing object
    phrase = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    code = codes.get(error.status_code, phrase)
    reply = ErrorReply(error.status_code, message, "invalid_request_error", None, code)
    return _respond(reply, dict(error.headers or {}))


def install_error_handlers(app: FastAPI) -> None:
    """Answer every failure of a route, and of routing itself, with an OpenAI error object."""
    app.add_exception_handler(CollmError, _on_error)
    app.add_exception_handler(OSError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_error)
