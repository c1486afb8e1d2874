"""Training files and fine-tuning jobs that keep everything in memory."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from collm.errors import RequestError, StateError, UnknownObjectError
from collm.replica.courtesy import Courtesy
from collm.replica.uploads import count_samples
from collm.server.learning_backend import FineTuning, JobRequest, Uploads
from collm.store.job_logs import JobCheckpoint, JobEvent
from collm.store.jobs import JobRecord, JobStatus
from collm.store.pages import Order, Page
from collm.store.uploads import StoredFile
from collm.types import VersionId

T = TypeVar("T")


def page_of(items: Mapping[str, T], keys: Sequence[str], after: str | None, limit: int) -> Page[T]:
    """Return the items named by ``keys`` that follow ``after``."""
    if after is not None and after not in items:
        raise UnknownObjectError(f"object '{after}' to list after does not exist")
    start = 0 if after is None else list(keys).index(after) + 1
    return Page(tuple(items[key] for key in keys[start : start + limit]), len(keys) > start + limit)


class FakeUploads:
    """Checks files as production does; remembers how it was asked."""

    def __init__(self) -> None:
        self.kept: dict[str, StoredFile] = {}
        self.contents: dict[str, bytes] = {}
        self.in_use: set[str] = set()
        """Ids that cannot be deleted."""

    async def add(self, filename: str, purpose: str, content: bytes) -> StoredFile:
        num_samples = count_samples(content, Courtesy(lambda: False))
        file_id = f"file-{len(self.kept):024x}"
        self.contents[file_id] = content
        self.kept[file_id] = StoredFile(
            file_id=file_id,
            filename=filename,
            purpose=purpose,
            num_bytes=len(content),
            num_samples=num_samples,
            digest=hashlib.sha256(content).hexdigest(),
            created_at_s=1_700_000_000.5 + len(self.kept),
            path=Path("files") / file_id,
        )
        return self.kept[file_id]

    async def list(
        self, *, after: str | None, limit: int, purpose: str | None, order: Order
    ) -> Page[StoredFile]:
        keys = [key for key, file in self.kept.items() if purpose in (None, file.purpose)]
        return page_of(self.kept, keys if order == "asc" else keys[::-1], after, limit)

    async def get(self, file_id: str) -> StoredFile:
        if file_id not in self.kept:
            raise UnknownObjectError(f"file '{file_id}' does not exist")
        return self.kept[file_id]

    async def read(self, file_id: str) -> bytes:
        await self.get(file_id)
        return self.contents[file_id]

    async def delete(self, file_id: str) -> None:
        await self.get(file_id)
        if file_id in self.in_use:
            raise StateError(f"file '{file_id}' is used by job ftjob-1", code="file_in_use")
        del self.kept[file_id], self.contents[file_id]


class FakeFineTuning:
    """Jobs that run when created and do what they are told; remembers every request."""

    def __init__(self, uploads: FakeUploads) -> None:
        self._uploads = uploads
        self.requests: list[JobRequest] = []
        self.jobs: dict[str, JobRecord] = {}
        self.logs: dict[str, dict[str, JobEvent]] = {}
        self.made: dict[str, dict[str, JobCheckpoint]] = {}

    async def create(self, request: JobRequest) -> JobRecord:
        self.requests.append(request)
        for param in ("training_file", "validation_file"):
            file_id = getattr(request, param)
            if file_id is not None and file_id not in self._uploads.kept:
                raise RequestError(f"file '{file_id}' does not exist", param=param)
        for job in self.jobs.values():
            if job.adapter == request.adapter and not job.status.has_ended:
                raise StateError(f"'{job.adapter}' has {job.job_id}", code="job_exists")
        return self.add_job(
            adapter=request.adapter,
            training_file=request.training_file,
            validation_file=request.validation_file,
            settings={**request.hyperparameters, "seed": request.seed},
            metadata=request.metadata,
            is_continuous=request.is_continuous,
        )

    def add_job(self, **given: Any) -> JobRecord:
        """Keep a running job whose other fields have defaults."""
        job_id = f"ftjob-{len(self.jobs):024x}"
        fields: dict[str, Any] = {
            "status": JobStatus.RUNNING,
            "training_file": None,
            "validation_file": None,
            "settings": {},
            "metadata": {},
            "is_continuous": False,
            "is_configured": False,
            "created_at_s": 1_700_000_000.5,
            "started_at_s": 1_700_000_001.5,
            "finished_at_s": None,
            "num_trained_tokens": 0,
            "result": None,
            "error": None,
            **given,
        }
        self.jobs[job_id] = JobRecord(job_id=job_id, **fields)
        self.logs[job_id], self.made[job_id] = {}, {}
        return self.jobs[job_id]

    def add_event(self, job_id: str, message: str, **data: object) -> None:
        log = self.logs[job_id]
        event_id = f"ftevent-{len(log)}"
        log[event_id] = JobEvent(
            event_id=event_id,
            job_id=job_id,
            level="info",
            kind="metrics" if data else "message",
            message=message,
            data=data,
            created_at_s=1_700_000_002.5,
        )

    def add_checkpoint(self, job_id: str, version: str, step: int, **metrics: float) -> None:
        made = self.made[job_id]
        checkpoint_id = f"ftckpt-{len(made)}"
        made[checkpoint_id] = JobCheckpoint(
            checkpoint_id=checkpoint_id,
            job_id=job_id,
            version=VersionId(version),
            step=step,
            metrics=metrics,
            created_at_s=1_700_000_003.5,
        )

    async def get(self, job_id: str) -> JobRecord:
        if job_id not in self.jobs:
            raise UnknownObjectError(f"job '{job_id}' does not exist")
        return self.jobs[job_id]

    async def list(
        self, *, after: str | None, limit: int, metadata: Mapping[str, str] | None
    ) -> Page[JobRecord]:
        wanted = (metadata or {}).items()
        keys = [key for key, job in self.jobs.items() if wanted <= job.metadata.items()]
        return page_of(self.jobs, keys[::-1], after, limit)

    async def cancel(self, job_id: str) -> JobRecord:
        return await self._change(job_id, JobStatus.CANCELLED)

    async def pause(self, job_id: str) -> JobRecord:
        return await self._change(job_id, JobStatus.PAUSED)

    async def resume(self, job_id: str) -> JobRecord:
        if (await self.get(job_id)).status is not JobStatus.PAUSED:
            raise StateError(f"job {job_id} is not paused")
        return await self._change(job_id, JobStatus.RUNNING)

    async def _change(self, job_id: str, status: JobStatus) -> JobRecord:
        job = await self.get(job_id)
        if job.status.has_ended:
            raise StateError(f"job {job_id} has ended: {job.status}", code="job_ended")
        ended = 1_700_000_004.5 if status.has_ended else None
        self.jobs[job_id] = replace(job, status=status, finished_at_s=ended)
        return self.jobs[job_id]

    async def events(self, job_id: str, *, after: str | None, limit: int) -> Page[JobEvent]:
        await self.get(job_id)
        log = self.logs[job_id]
        return page_of(log, list(log)[::-1], after, limit)

    async def checkpoints(
        self, job_id: str, *, after: str | None, limit: int
    ) -> Page[JobCheckpoint]:
        await self.get(job_id)
        made = self.made[job_id]
        return page_of(made, list(made)[::-1], after, limit)


def as_backends(uploads: FakeUploads, jobs: FakeFineTuning) -> tuple[Uploads, FineTuning]:
    """Check, by type, that the fakes are what the server asks for."""
    return uploads, jobs
