"""Routes about the cluster itself: models, health, metrics, and how it stands."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict

from collm.cluster.registry import Member
from collm.cluster.snapshot_json import to_json
from collm.errors import UnknownAdapterError
from collm.metrics.exporter import CONTENT_TYPE
from collm.server.front.calls import make_call
from collm.server.front.front import Front, front_of
from collm.server.front.gateway import Gateway
from collm.server.front.listings import MISSING_HEADER
from collm.server.front.metrics import merge_metrics
from collm.server.parsing import parse_query
from collm.types import VersionId

router = APIRouter()


class AllocationQuery(BaseModel):
    """Whose part of the allocation is asked for."""

    model_config = ConfigDict(extra="forbid")

    replica: str | None = None


@router.get("/v1/models")
async def list_models(http: Request) -> Response:
    """List everything that a request may put in ``model``, each with the replicas that serve it."""
    cards, missing = await _models(http)
    headers = {MISSING_HEADER: ",".join(missing)} if missing else None
    return JSONResponse({"object": "list", "data": list(cards.values())}, headers=headers)


@router.get("/v1/models/{model_id:path}")
async def show_model(http: Request, model_id: str) -> Response:
    """Show one of the models."""
    cards, _ = await _models(http)
    if model_id not in cards:
        names = ", ".join(cards)
        raise UnknownAdapterError(f"The model '{model_id}' does not exist; being served: {names}.")
    return JSONResponse(cards[model_id])


async def _models(http: Request) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the models of all replicas by id, and the replicas whose are missing.

    Where replicas differ, as for a moment after a promotion, the first by name speaks.
    """
    gateway = Gateway(front_of(http), http)
    replies, _ = await gateway.ask_each(gateway.live_ids, make_call("GET", "/v1/models"))
    cards: dict[str, dict[str, Any]] = {}
    answered = [reply for reply in replies if reply.is_ok]
    for reply in answered:
        for card in reply.json()["data"]:
            known = cards.setdefault(card["id"], {**card, "replicas": []})
            known["replicas"].append(reply.replica_id)
    return cards, gateway.missing(reply.replica_id for reply in answered)


@router.get("/health")
async def show_health(http: Request) -> Response:
    """Answer 200 while some replica takes requests, 503 otherwise."""
    front = front_of(http)
    is_live = front.registry.liveness()
    status = "ok" if all(is_live.values()) else "degraded"
    body = {
        "status": status if any(is_live.values()) else "unavailable",
        "replicas": {name: "ok" if alive else "dead" for name, alive in is_live.items()},
    }
    return JSONResponse(body, status_code=200 if any(is_live.values()) else 503)


@router.get("/metrics")
async def show_metrics(http: Request) -> Response:
    """Return the front's metrics, and those of each replica labelled with its name."""
    front = front_of(http)
    gateway = Gateway(front, http)
    own = front.metrics.render(front.num_open, front.registry.liveness())
    replies, _ = await gateway.ask_each(front.registry.table, make_call("GET", "/metrics"))
    texts = [(reply.replica_id, reply.body.decode()) for reply in replies if reply.is_ok]
    return Response(merge_metrics(own, texts), media_type=CONTENT_TYPE)


@router.get("/cluster")
async def show_cluster(http: Request) -> Response:
    """Return how every replica stands, what each serves, and the latest rounds."""
    front = front_of(http)
    members = front.registry.members()
    return JSONResponse(
        {
            "replicas": [_replica(front, member) for member in members],
            "adapters": _versions(members),
            "rounds": front.backends.rounds.status(),
            "num_open": front.num_open,
        }
    )


@router.get("/cluster/allocation")
async def show_allocation(http: Request) -> Response:
    """Return the allocation in force, or with ``replica`` why that one has its part."""
    query = parse_query(AllocationQuery, http.query_params)
    return JSONResponse(front_of(http).backends.planning.status(query.replica))


def _replica(front: Front, member: Member) -> dict[str, Any]:
    return {
        "id": member.endpoint.replica_id,
        "url": member.endpoint.url,
        "started_at_s": member.endpoint.started_at_s,
        "is_live": member.is_live,
        "silent_s": member.silent_s,
        "num_open": front.backends.sent.num_open(member.endpoint.replica_id),
        "state": None if member.snapshot is None else to_json(member.snapshot),
    }


def _versions(members: tuple[Member, ...]) -> dict[str, dict[str, VersionId]]:
    """Return, for each adapter, the active version on each live replica."""
    found: dict[str, dict[str, VersionId]] = {}
    for member in members:
        if member.snapshot is not None:
            for adapter, version in member.snapshot.active.items():
                found.setdefault(adapter, {})[member.endpoint.replica_id] = version
    return found
