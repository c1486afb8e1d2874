"""Forms with files in them, as browsers, curl and OpenAI's clients send them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from collm.errors import RequestError
from collm.server.parsing import read_chunks

FORM_OVERHEAD_BYTES = 64 * 1024
"""What the parts' headers and the short fields may add to the files' bytes."""

_MAX_FIELDS = 16
_MAX_FIELD_BYTES = 16 * 1024


@asynccontextmanager
async def read_form(request: Request, max_bytes: int, *, max_files: int) -> AsyncIterator[FormData]:
    """Read a form; its files wait on disk, and are gone after the ``with`` block.

    Args:
        request: Its body has not been read.
        max_bytes: Most bytes of the whole body.
        max_files: Most files in the form.

    Raises:
        RequestError: It is no form, or has too many parts.
        BodyTooLargeError: It has, or claims to have, more than ``max_bytes``.
        ClientGoneError: The client left before it had sent everything.
    """
    form = await _parse(request, max_bytes, max_files)
    try:
        yield form
    finally:
        await form.close()


def check_fields(form: FormData, *, texts: tuple[str, ...], files: tuple[str, ...]) -> None:
    """Raise ``RequestError`` for a part that is not among these, or is there twice."""
    names = [name for name, _ in form.multi_items()]
    for name in names:
        if name not in texts + files:
            allowed = ", ".join(files + texts)
            message = f"Unknown field {name[:64]!r}; allowed: {allowed}."
            param = name[:64] if name.isprintable() else None  # may not even be Unicode
            raise RequestError(message, param=param, code="unknown_parameter")
        if names.count(name) > 1:
            raise RequestError(f"'{name}' is there more than once.", param=name)


def file_of(form: FormData, name: str) -> UploadFile:
    """Return a part that must be a file; raises ``RequestError``."""
    part = _part(form, name)
    if not isinstance(part, UploadFile):
        raise RequestError(f"'{name}' must be a file: a part with a filename.", param=name)
    return part


def text_of(form: FormData, name: str) -> str:
    """Return a part that must be text; raises ``RequestError``."""
    part = _part(form, name)
    if not isinstance(part, str):
        raise RequestError(f"'{name}' must be text: a part without a filename.", param=name)
    return part


def _part(form: FormData, name: str) -> UploadFile | str:
    part = form.get(name)
    if part is None:
        message = f"'{name}' is required."
        raise RequestError(message, param=name, code="missing_required_parameter")
    return part


async def _parse(request: Request, max_bytes: int, max_files: int) -> FormData:
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        raise RequestError("The request body must be multipart/form-data.", code="invalid_form")
    parser = MultiPartParser(
        request.headers,
        read_chunks(request, max_bytes),
        max_files=max_files,
        max_fields=_MAX_FIELDS,
        max_part_size=_MAX_FIELD_BYTES,
    )
    try:
        return await parser.parse()
    except (MultiPartException, UnicodeError) as error:  # the latter: an odd charset
        message = f"The request body is no valid form: {error}"
        raise RequestError(message, code="invalid_form") from error
