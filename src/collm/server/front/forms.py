"""Forms on their way to a replica: read for what the front must know, then written anew."""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import UploadFile

from collm.server.front.calls import Call, make_call
from collm.server.front.placement import REPLICA, split_query
from collm.server.multipart import read_form

_MAX_FILES = 8
"""More than any form may have; a replica says which ones are too many."""
_PIECE_BYTES = 256 * 1024
_ESCAPED = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})

Part = tuple[str, str | UploadFile]
"""Name and value of a field."""


class FormBody:
    """A ``multipart/form-data`` body; each iteration starts at the first byte.

    Args:
        parts: The fields; their files must stay open.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._boundary = secrets.token_hex(16)
        self._parts = [(self._opening(name, value), value) for name, value in parts]

    @property
    def content_type(self) -> bytes:
        """What the request's header says."""
        return f"multipart/form-data; boundary={self._boundary}".encode()

    @property
    def num_bytes(self) -> int:
        """Length of the whole."""
        return len(self._closing) + sum(
            len(opening) + len(b"\r\n") + _num_bytes(value) for opening, value in self._parts
        )

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes in pieces."""
        for opening, value in self._parts:
            yield opening
            if isinstance(value, str):
                yield value.encode()
            else:
                await value.seek(0)
                while piece := await value.read(_PIECE_BYTES):
                    yield piece
            yield b"\r\n"
        yield self._closing

    @property
    def _closing(self) -> bytes:
        return f"--{self._boundary}--\r\n".encode()

    def _opening(self, name: str, value: str | UploadFile) -> bytes:
        head = f'--{self._boundary}\r\ncontent-disposition: form-data; name="{_quoted(name)}"'
        if isinstance(value, UploadFile):
            head += f'; filename="{_quoted(value.filename or "")}"'
            head += "\r\ncontent-type: application/octet-stream"
        return f"{head}\r\n\r\n".encode(errors="replace")


def _quoted(text: str) -> str:
    return text.translate(_ESCAPED)


def _num_bytes(value: str | UploadFile) -> int:
    if isinstance(value, str):
        return len(value.encode())
    assert value.size is not None  # the form's parser counts
    return value.size


@dataclass(frozen=True, slots=True)
class PlacedForm:
    """A client's form as it goes on, and where it should go."""

    named: str | None
    """The replica that a field or the URL names."""
    call: Call


@asynccontextmanager
async def placed_form(http: Request, max_bytes: int) -> AsyncIterator[PlacedForm]:
    """Read a form, and take out of it what names a replica; raises as ``read_form`` does.

    Its files are gone after the ``with`` block.
    """
    async with read_form(http, max_bytes, max_files=_MAX_FILES) as form:
        named, query = split_query(http)
        parts: list[Part] = []
        for name, value in form.multi_items():
            if name == REPLICA and isinstance(value, str):
                named = value
            else:
                parts.append((name, value))
        yield PlacedForm(named, _form_call(http, query, parts))


def _form_call(http: Request, query: str, parts: Sequence[Part]) -> Call:
    body = FormBody(parts)
    headers = [pair for pair in http.scope["headers"] if pair[0] != b"content-type"]
    return make_call(
        http.method,
        f"{http.url.path}?{query}" if query else http.url.path,
        [*headers, (b"content-type", body.content_type)],
        body,
        num_body_bytes=body.num_bytes,
    )
