"""Adapters in and out: PEFT folders by upload and download, and vLLM's routes to load them."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from collm.errors import AdapterError, RequestError, UnknownAdapterError
from collm.server.adapter_schemas import ExportQuery, ImportFields, LoadBody, UnloadBody
from collm.server.admin_key import ADMIN
from collm.server.errors import BodyTooLargeError
from collm.server.multipart import FORM_OVERHEAD_BYTES, check_fields, file_of, read_form, text_of
from collm.server.openapi import FILE_PART, body_schema, form_schema, query_schema
from collm.server.parsing import parse_query, read_as
from collm.server.service import Service, service_of
from collm.types import VersionInfo

router = APIRouter()

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MAX_CONFIG_BYTES = 1024 * 1024
FORM_BYTES = MAX_CONFIG_BYTES + FORM_OVERHEAD_BYTES
"""What a form may have besides the weights."""
MAX_FILES = 8
"""More than a form may have, so that a few surplus ones are refused by name."""

_FORM_SCHEMA = form_schema(
    {
        "name": {"type": "string"},
        "promote": {"type": "boolean", "default": False},
        CONFIG: FILE_PART,
        WEIGHTS: FILE_PART,
    },
    required=("name", CONFIG, WEIGHTS),
)


@router.get("/adapters/export", openapi_extra=query_schema(ExportQuery))
async def export(request: Request) -> Response:
    """Download a version as a zip archive of its PEFT folder."""
    query = parse_query(ExportQuery, request.query_params)
    content = await service_of(request).adapters.export(query.version)
    name = quote(query.version, safe="@")
    headers = {"content-disposition": f'attachment; filename="{name}.zip"'}
    return Response(content, media_type="application/zip", headers=headers)


@router.post("/adapters/import", openapi_extra=_FORM_SCHEMA, dependencies=ADMIN)
async def import_adapter(request: Request) -> Response:
    """Publish an uploaded PEFT adapter as its name's next version."""
    service = service_of(request)
    max_bytes = service.config.max_adapter_bytes + FORM_BYTES
    async with read_form(request, max_bytes, max_files=MAX_FILES) as form:
        check_fields(form, texts=("name", "promote"), files=(CONFIG, WEIGHTS))
        texts = {"name": text_of(form, "name")}
        if "promote" in form:
            texts["promote"] = text_of(form, "promote")
        asked = parse_query(ImportFields, texts)
        _refuse_base(service, "name", asked.name)
        config, weights = file_of(form, CONFIG), file_of(form, WEIGHTS)
        check_size(CONFIG, config.size, MAX_CONFIG_BYTES)
        check_size(WEIGHTS, weights.size, service.config.max_adapter_bytes)
        info = await _publish(service, asked, await config.read(), weights.file)
    return JSONResponse(asdict(info))


def check_size(param: str, num_bytes: int | None, max_bytes: int) -> None:
    """Raise ``BodyTooLargeError`` for a part that is too large."""
    if num_bytes is not None and num_bytes > max_bytes:
        raise BodyTooLargeError(f"'{param}' is too large; allowed: {max_bytes} bytes.", param=param)


async def _publish(
    service: Service, asked: ImportFields, config: bytes, weights: IO[bytes]
) -> VersionInfo:
    async with in_own_file(weights) as path:
        with blaming(WEIGHTS):
            return await service.adapters.import_folder(
                asked.name, config, path, promote=asked.promote
            )


@asynccontextmanager
async def in_own_file(weights: IO[bytes]) -> AsyncIterator[Path]:
    """Copy an upload to a file of ours: what a client calls its files goes nowhere."""
    with TemporaryDirectory(prefix="collm-import-") as folder:
        path = Path(folder) / WEIGHTS
        await asyncio.to_thread(_copy, weights, path)
        yield path


def _copy(source: IO[bytes], path: Path) -> None:
    with path.open("wb") as target:
        shutil.copyfileobj(source, target)


@router.post("/v1/load_lora_adapter", openapi_extra=body_schema(LoadBody), dependencies=ADMIN)
async def load_lora_adapter(request: Request) -> Response:
    """Serve a PEFT folder of the server's machine under a name, as vLLM does."""
    service = service_of(request)
    body = await read_as(LoadBody, request, service.config.max_body_bytes)
    _refuse_base(service, "lora_name", body.lora_name)
    with blaming("lora_path"):
        await service.adapters.load(body.lora_name, body.lora_path, in_place=body.load_inplace)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter", openapi_extra=body_schema(UnloadBody), dependencies=ADMIN)
async def unload_lora_adapter(request: Request) -> Response:
    """Stop serving a name to new requests, as vLLM does."""
    service = service_of(request)
    body = await read_as(UnloadBody, request, service.config.max_body_bytes)
    await service.adapters.unload(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


@contextmanager
def blaming(param: str) -> Iterator[None]:
    """Answer an adapter that does not fit with 400, not as a conflict: the client brought it."""
    try:
        yield
    except UnknownAdapterError:
        raise
    except AdapterError as error:
        text = str(error)
        blamed = CONFIG if param == WEIGHTS and text.startswith(CONFIG) else param
        raise RequestError(text, param=blamed, code="invalid_adapter") from error


def _refuse_base(service: Service, param: str, name: str) -> None:
    if name == service.replica.base_model:
        message = f"an adapter cannot have the base model's name {name!r}"
        raise RequestError(message, param=param, code="invalid_value")
