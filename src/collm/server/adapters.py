"""``/adapters``: the versions there are, what was decided about them, and which one is active."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from collm.server.adapter_schemas import HistoryQuery, RollbackBody, VersionBody
from collm.server.admin_key import ADMIN
from collm.server.openapi import body_schema, query_schema
from collm.server.parsing import parse_query, read_as
from collm.server.service import Service, service_of
from collm.store.versions import PublishedVersion
from collm.types import VersionId, VersionInfo

router = APIRouter()


def _on_disk(published: PublishedVersion) -> dict[str, Any]:
    """Return the members that only a version on disk has, and those that it shares."""
    return {
        "version": published.version,
        "adapter": published.adapter,
        "digest": published.digest,
        "rank": published.rank,
        "metadata": dict(published.metadata),
        "published_at_s": published.published_at_s,
    }


_NOT_LOADED: Mapping[str, Any] = {"slot": None, "num_pins": 0, "is_active": False}
_NOT_ON_DISK: Mapping[str, Any] = {"published_at_s": None}


async def _versions(service: Service) -> list[dict[str, Any]]:
    """Return a row for each version that is on disk, on the device, or both."""
    pinned = await service.adapters.pinned()
    published = {item.version: item for item in await service.adapters.published()}
    # Read last, without a pause before its use: what is on the device changes all the time.
    loaded: dict[VersionId, VersionInfo] = {
        info.version: info for info in service.replica.versions()
    }
    rows = []
    for version in dict.fromkeys([*published, *loaded]):
        disk = _on_disk(published[version]) if version in published else _NOT_ON_DISK
        device = asdict(loaded[version]) if version in loaded else _NOT_LOADED
        rows.append({**disk, **device, "is_pinned": version in pinned})
    return rows


@router.get("/adapters")
async def list_versions(request: Request) -> Response:
    """List the adapter versions on disk and on the device."""
    return JSONResponse({"object": "list", "data": await _versions(service_of(request))})


@router.get("/adapters/{name}/history", openapi_extra=query_schema(HistoryQuery))
async def show_history(request: Request, name: str) -> Response:
    """List the decisions about an adapter, all or the latest, oldest first."""
    query = parse_query(HistoryQuery, request.query_params)
    decisions = await service_of(request).adapters.history(name, limit=query.limit)
    return JSONResponse({"object": "list", "data": [asdict(item) for item in decisions]})


@router.post("/adapters/promote", openapi_extra=body_schema(VersionBody), dependencies=ADMIN)
async def promote(request: Request) -> Response:
    """Make a version its adapter's active one; requests in flight keep theirs."""
    desk, body = service_of(request).adapters, await _version(request)
    return JSONResponse(asdict(await desk.promote(body.version)))


@router.post("/adapters/rollback", openapi_extra=body_schema(RollbackBody), dependencies=ADMIN)
async def roll_back(request: Request) -> Response:
    """Return an adapter to the version before its active one: from its first, to the base."""
    service = service_of(request)
    body = await read_as(RollbackBody, request, service.config.max_body_bytes)
    return JSONResponse(asdict(await service.adapters.rollback(body.adapter)))


@router.post("/adapters/pin", openapi_extra=body_schema(VersionBody), dependencies=ADMIN)
async def pin(request: Request) -> Response:
    """Keep a version on disk and on the device, however many newer ones there are."""
    desk, body = service_of(request).adapters, await _version(request)
    await desk.pin(body.version)
    return JSONResponse({"version": body.version, "is_pinned": True})


@router.post("/adapters/unpin", openapi_extra=body_schema(VersionBody), dependencies=ADMIN)
async def unpin(request: Request) -> Response:
    """Let a pinned version go when its time comes."""
    desk, body = service_of(request).adapters, await _version(request)
    await desk.unpin(body.version)
    return JSONResponse({"version": body.version, "is_pinned": False})


async def _version(request: Request) -> VersionBody:
    return await read_as(VersionBody, request, service_of(request).config.max_body_bytes)
