"""``/v1/files``: training files."""

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import FormData

from collm.errors import RequestError
from collm.server.errors import BodyTooLargeError
from collm.server.fields import UNSUPPORTED
from collm.server.learning_schemas import FilesQuery
from collm.server.listing import list_response
from collm.server.multipart import FORM_OVERHEAD_BYTES, check_fields, file_of, read_form, text_of
from collm.server.openapi import FILE_PART, form_schema, query_schema
from collm.server.parsing import parse_query
from collm.server.service import service_of
from collm.store.uploads import StoredFile

router = APIRouter()

PURPOSE = "fine-tune"
"""The one purpose of OpenAI's that files have here."""

_MAX_NAME_CHARS = 255
_MAX_FILES = 4
"""More than a form may have, so that surplus ones are refused by name."""

_FORM_SCHEMA = form_schema(
    {"file": FILE_PART, "purpose": {"const": PURPOSE}}, required=("file", "purpose")
)


def _object(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.file_id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": int(file.created_at_s),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
        "expires_at": None,
        "num_samples": file.num_samples,
    }


@router.post("/v1/files", openapi_extra=_FORM_SCHEMA)
async def upload_file(request: Request) -> Response:
    """Upload chat-format JSONL; a line that is no sample is named."""
    service = service_of(request)
    max_bytes = service.config.max_file_bytes
    async with read_form(request, max_bytes + FORM_OVERHEAD_BYTES, max_files=_MAX_FILES) as form:
        _refuse_unsupported(form)
        check_fields(form, texts=("purpose",), files=("file",))
        _check_purpose(text_of(form, "purpose"))
        upload = file_of(form, "file")
        content, name = await upload.read(), _plain_name(upload.filename or "")
    if len(content) > max_bytes:
        raise BodyTooLargeError(f"'file' is too large; allowed: {max_bytes} bytes.", param="file")
    return JSONResponse(_object(await service.uploads.add(name, PURPOSE, content)))


def _refuse_unsupported(form: FormData) -> None:
    if any(name.partition("[")[0] == "expires_after" for name in form):
        raise RequestError(
            "'expires_after': this is not supported yet; files stay until they are deleted.",
            param="expires_after",
            code=UNSUPPORTED,
        )


def _check_purpose(purpose: str) -> None:
    if purpose != PURPOSE:
        raise RequestError(
            f"'purpose': {purpose[:40]!r} is not supported; allowed: {PURPOSE}.",
            param="purpose",
            code=UNSUPPORTED,
        )


def _plain_name(name: str) -> str:
    """Return what a client calls its file, without the folders and what a terminal would obey."""
    last = name.replace("\\", "/").rpartition("/")[2]
    printable = "".join(character for character in last if character.isprintable())
    return printable[:_MAX_NAME_CHARS] or "upload"


@router.get("/v1/files", openapi_extra=query_schema(FilesQuery))
async def list_files(request: Request) -> Response:
    """List files, newest first unless asked otherwise."""
    query = parse_query(FilesQuery, request.query_params)
    page = await service_of(request).uploads.list(
        after=query.after, limit=query.limit, purpose=query.purpose, order=query.order
    )
    return list_response(page, _object)


@router.get("/v1/files/{file_id}")
async def show_file(request: Request, file_id: str) -> Response:
    """Show one file."""
    return JSONResponse(_object(await service_of(request).uploads.get(file_id)))


@router.get("/v1/files/{file_id}/content")
async def download_file(request: Request, file_id: str) -> Response:
    """Return a file's content as it was uploaded."""
    uploads = service_of(request).uploads
    file = await uploads.get(file_id)
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename)}"}
    content = await uploads.read(file_id)
    return Response(content, media_type="application/octet-stream", headers=headers)


@router.delete("/v1/files/{file_id}")
async def delete_file(request: Request, file_id: str) -> Response:
    """Delete a file that no unfinished job uses."""
    await service_of(request).uploads.delete(file_id)
    return JSONResponse({"id": file_id, "object": "file", "deleted": True})
