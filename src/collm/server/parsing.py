"""From a request's bytes to a checked body, with errors that name the field and what is allowed."""

from collections.abc import AsyncGenerator, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from collm.errors import RequestError
from collm.server.errors import BodyTooLargeError, ClientGoneError
from collm.server.fields import UNSUPPORTED

B = TypeVar("B", bound=BaseModel)

_MAX_SHOWN_CHARS = 60

_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "json_invalid": "invalid_json",
    UNSUPPORTED: UNSUPPORTED,
}


async def read_chunks(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives.

    Raises:
        BodyTooLargeError: It has, or claims to have, more than ``max_bytes``.
        ClientGoneError: The client left before it had sent everything.
    """
    claimed = request.headers.get("content-length", "0")
    if claimed.isdigit() and int(claimed) > max_bytes:
        raise _too_large(max_bytes)
    num_bytes, is_complete = 0, False
    while not is_complete:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError("the client left while sending its request")
        chunk = message.get("body", b"")
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        is_complete = not message.get("more_body", False)
        yield chunk


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the whole body; raises as ``read_chunks`` does."""
    body = bytearray()
    async for chunk in read_chunks(request, max_bytes):
        body += chunk
    return bytes(body)


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is too large; allowed: {max_bytes} bytes.")


async def read_as(kind: type[B], request: Request, max_bytes: int) -> B:
    """Return the body as a ``kind``; raises ``RequestError`` naming what is wrong with it."""
    return parse(kind, await read_body(request, max_bytes))


def parse(kind: type[B], body: bytes) -> B:
    """Check a JSON body against its schema.

    Raises:
        RequestError: Not JSON, or not this schema; names the first offending field.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _first_of(error, kind) from None


def parse_query(kind: type[B], query: Mapping[str, object]) -> B:
    """Check a URL's parameters, whose values are text; raises ``RequestError`` likewise."""
    try:
        return kind.model_validate(query, strict=False)
    except ValidationError as error:
        raise _first_of(error, kind) from None


def _first_of(error: ValidationError, kind: type[BaseModel]) -> RequestError:
    first = error.errors(include_url=False)[0]
    param = first.get("ctx", {}).get("param")
    if param is not None:
        return RequestError(f"'{param}': {first['msg']}.", param=param, code="invalid_value")
    return _explain(kind, first["type"], first["loc"], first["msg"], first["input"])


def _explain(
    kind: type[BaseModel], cause: str, loc: tuple[int | str, ...], message: str, value: Any
) -> RequestError:
    code = _CODES.get(cause, "invalid_value")
    if cause == "json_invalid":
        return RequestError(f"The request body must be valid JSON: {message}.", code=code)
    if not loc:
        return RequestError(f"The request body is not valid: {message}.", code=code)
    path = _path(loc)
    if cause == "extra_forbidden":
        return RequestError(_unknown(kind, loc, path), param=path, code=code)
    if cause == "missing":
        return RequestError(f"'{path}' is required.", param=path, code=code)
    text = f"'{path}': {message[:1].lower()}{message[1:]} (got {_shown(value)})."
    return RequestError(text, param=path, code=code)


def _path(loc: tuple[int | str, ...]) -> str:
    text = ""
    for step in loc:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text[:200]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"


def _unknown(kind: type[BaseModel], loc: tuple[int | str, ...], path: str) -> str:
    allowed = _fields_at(kind, loc[:-1])
    near = get_close_matches(str(loc[-1]), allowed, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"allowed: {', '.join(allowed)}."
    return f"Unknown field '{path}'; {hint}"


def _fields_at(kind: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Names of the fields of the object that ``loc`` leads to."""
    here = kind
    for step in loc:
        if isinstance(step, str):
            here = _model_in(here.model_fields[step].annotation) or here
    return sorted(here.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(arg) for arg in getattr(annotation, "__args__", ()))
    return next((model for model in found if model is not None), None)
