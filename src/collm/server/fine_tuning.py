"""``/v1/fine_tuning/jobs``: what learns, from what, and how it goes."""

import re
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from collm.errors import RequestError, UnknownAdapterError
from collm.server.learning_backend import JobRequest
from collm.server.learning_schemas import (
    CheckpointsQuery,
    CreateJobBody,
    EventsQuery,
    Hyperparameters,
    JobsQuery,
)
from collm.server.listing import list_response
from collm.server.openapi import body_schema, query_schema
from collm.server.parsing import parse_query, read_as
from collm.server.service import Service, service_of
from collm.store.job_logs import JobCheckpoint, JobEvent
from collm.store.jobs import JobRecord, JobStatus

router = APIRouter(prefix="/v1/fine_tuning/jobs")

_METADATA = re.compile(r"metadata\[(.*)\]", re.DOTALL)
_LEAST_PROGRESS = 0.02
"""Share done before which its pace says nothing."""
_OPENAI_HYPERPARAMETERS = ("n_epochs", "batch_size", "learning_rate_multiplier")


@router.post("", openapi_extra=body_schema(CreateJobBody))
async def create_job(request: Request) -> Response:
    """Start a fine-tuning job."""
    service = service_of(request)
    body = await read_as(CreateJobBody, request, service.config.max_body_bytes)
    service.require_alive()
    _check_model(service, body.model)
    job = await service.fine_tuning.create(_request_for(service, body))
    return JSONResponse(_job(service, job))


def _check_model(service: Service, model: str) -> None:
    base = service.replica.base_model
    if model == base:
        return
    names = [card.id for card in service.replica.models()]
    if model not in names:
        raise UnknownAdapterError(
            f"The model '{model}' does not exist; what can be fine-tuned: {base}."
        )
    raise RequestError(
        f"'model' must be the base model {base}; to go on training an adapter name it in "
        f"'adapter', without a version (got {model!r}).",
        param="model",
        code="invalid_value",
    )


def _request_for(service: Service, body: CreateJobBody) -> JobRequest:
    adapter = body.adapter or body.suffix or f"ft-{service.new_id()[-8:]}"
    if adapter == body.model:
        raise RequestError(
            f"the adapter cannot have the base model's name {adapter!r}",
            param="suffix" if body.adapter is None else "adapter",
            code="invalid_value",
        )
    return JobRequest(
        adapter=adapter,
        base_model=body.model,
        training_file=body.training_file,
        validation_file=body.validation_file,
        is_continuous=body.continuous,
        hyperparameters=body.chosen.chosen(),
        seed=body.seed,
        metadata=body.metadata,
    )


@router.get("", openapi_extra=query_schema(JobsQuery))
async def list_jobs(request: Request) -> Response:
    """List jobs, newest first."""
    service = service_of(request)
    query = _jobs_query(request)
    page = await service.fine_tuning.list(
        after=query.after, limit=query.limit, metadata=query.metadata
    )
    return list_response(page, lambda job: _job(service, job))


def _jobs_query(request: Request) -> JobsQuery:
    """Read the parameters, among which ``metadata[KEY]=VALUE`` may stand several times."""
    parameters: dict[str, Any] = {}
    for name, value in request.query_params.items():
        if wanted := _METADATA.fullmatch(name):
            parameters.setdefault("metadata", {})[wanted[1]] = value
        else:
            parameters[name] = value
    return parse_query(JobsQuery, parameters)


@router.get("/{job_id}")
async def show_job(request: Request, job_id: str) -> Response:
    """Show one job."""
    service = service_of(request)
    return JSONResponse(_job(service, await service.fine_tuning.get(job_id)))


@router.post("/{job_id}/cancel")
async def cancel_job(request: Request, job_id: str) -> Response:
    """End a job for good; what it published stays."""
    service = _alive(request)
    return JSONResponse(_job(service, await service.fine_tuning.cancel(job_id)))


@router.post("/{job_id}/pause")
async def pause_job(request: Request, job_id: str) -> Response:
    """Let a job rest; its adapter is served on."""
    service = _alive(request)
    return JSONResponse(_job(service, await service.fine_tuning.pause(job_id)))


@router.post("/{job_id}/resume")
async def resume_job(request: Request, job_id: str) -> Response:
    """Let a paused job go on where it was."""
    service = _alive(request)
    return JSONResponse(_job(service, await service.fine_tuning.resume(job_id)))


def _alive(request: Request) -> Service:
    service = service_of(request)
    service.require_alive()
    return service


@router.get("/{job_id}/events", openapi_extra=query_schema(EventsQuery))
async def list_events(request: Request, job_id: str) -> Response:
    """List what happened to a job, newest first."""
    query = parse_query(EventsQuery, request.query_params)
    events = service_of(request).fine_tuning.events
    return list_response(await events(job_id, after=query.after, limit=query.limit), _event)


@router.get("/{job_id}/checkpoints", openapi_extra=query_schema(CheckpointsQuery))
async def list_checkpoints(request: Request, job_id: str) -> Response:
    """List the versions that a job published, newest first."""
    query = parse_query(CheckpointsQuery, request.query_params)
    checkpoints = service_of(request).fine_tuning.checkpoints
    page = await checkpoints(job_id, after=query.after, limit=query.limit)
    return list_response(page, _checkpoint)


def _job(service: Service, job: JobRecord) -> dict[str, Any]:
    chosen = {
        name: job.settings[name]
        for name in Hyperparameters.model_fields
        if job.settings.get(name) is not None
    }
    hyperparameters = {**dict.fromkeys(_OPENAI_HYPERPARAMETERS, "auto"), **chosen}
    is_served = job.status.has_ended and job.result is not None
    progress = _done_share(service, job)
    return {
        "id": job.job_id,
        "object": "fine_tuning.job",
        "created_at": int(job.created_at_s),
        "started_at": _seconds(job.started_at_s),
        "finished_at": _seconds(job.finished_at_s),
        "estimated_finish": _estimated_finish(service, job, progress),
        "progress": progress,
        "status": str(job.status),
        "error": None if job.error is None else dict(job.error),
        "model": service.replica.base_model,
        # The name and not the version: it stays servable when newer versions replace this one.
        "fine_tuned_model": job.adapter if is_served else None,
        "adapter": job.adapter,
        "version": job.result,
        "continuous": job.is_continuous,
        "configured": job.is_configured,
        "training_file": job.training_file or "",  # OpenAI's clients want a string
        "validation_file": job.validation_file,
        "result_files": [],
        "hyperparameters": hyperparameters,
        "method": {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}},
        "seed": job.settings.get("seed") or 0,
        "trained_tokens": job.num_trained_tokens,
        "integrations": [],
        "metadata": dict(job.metadata),
        "organization_id": "collm",
    }


def _done_share(service: Service, job: JobRecord) -> float | None:
    """Return the share of a job that is done, as far as that is known."""
    if job.status.has_ended:
        return 1.0 if job.status is JobStatus.SUCCEEDED else None
    live = service.replica.snapshot().get("adapters", {}).get(job.adapter, {})
    return live.get("done_share") if live.get("job") == job.job_id else None


def _estimated_finish(service: Service, job: JobRecord, progress: float | None) -> int | None:
    """Return when a job ends if it goes on as so far, pauses included."""
    if progress is None or progress < _LEAST_PROGRESS or job.status is not JobStatus.RUNNING:
        return None
    now_s, began_s = service.wall_time_s(), job.started_at_s or job.created_at_s
    return int(now_s + (now_s - began_s) * (1.0 - progress) / progress)


def _event(event: JobEvent) -> dict[str, Any]:
    return {
        "id": event.event_id,
        "object": "fine_tuning.job.event",
        "created_at": int(event.created_at_s),
        "level": event.level,
        "message": event.message,
        "type": event.kind,
        "data": dict(event.data),
    }


def _checkpoint(checkpoint: JobCheckpoint) -> dict[str, Any]:
    return {
        "id": checkpoint.checkpoint_id,
        "object": "fine_tuning.job.checkpoint",
        "created_at": int(checkpoint.created_at_s),
        "fine_tuned_model_checkpoint": checkpoint.version,
        "fine_tuning_job_id": checkpoint.job_id,
        "step_number": checkpoint.step,
        "metrics": {"step": checkpoint.step, **checkpoint.metrics},
    }


def _seconds(time_s: float | None) -> int | None:
    return None if time_s is None else int(time_s)
