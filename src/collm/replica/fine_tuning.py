"""Fine-tuning jobs: taken in, built beside the step loop, and ended."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol, TypeVar

from collm.errors import AdapterError, CollmError, RequestError, StateError, UnknownObjectError
from collm.lora.terms import Terms
from collm.replica.archive import Archive
from collm.replica.courtesy import Courtesy
from collm.replica.inbox import AddJob, AddSamples, CancelJob, PauseJob, RemoveSample, ResumeJob
from collm.replica.job_builder import BuiltJob, JobBuilder
from collm.replica.job_settings import requested_settings
from collm.replica.post import Post
from collm.store.data_folder import DataFolder
from collm.store.job_logs import JobCheckpoint, JobEvent
from collm.store.jobs import JobRecord, JobStatus
from collm.store.pages import Page

_log = logging.getLogger(__name__)
T = TypeVar("T")


class JobOrder(Protocol):
    """A fine-tuning job that a client asks for."""

    @property
    def adapter(self) -> str:
        """Adapter to train."""
        ...

    @property
    def training_file(self) -> str | None:
        """Id of an uploaded file; ``None`` learns from feedback alone."""
        ...

    @property
    def validation_file(self) -> str | None:
        """Id of an uploaded file to be judged by."""
        ...

    @property
    def is_continuous(self) -> bool:
        """Whether the job goes on until it is cancelled."""
        ...

    @property
    def hyperparameters(self) -> Mapping[str, int | float]:
        """What the client chose."""
        ...

    @property
    def seed(self) -> int | None:
        """``None`` leaves the choice here."""
        ...

    @property
    def metadata(self) -> Mapping[str, str]:
        """The client's own notes."""
        ...


class FineTuning:
    """The jobs of one replica, for asyncio; what it answers is on disk.

    Args:
        data: The jobs' rows.
        archive: Writes them.
        post: Reaches the step loop.
        builder: Builds jobs.
        terms: What can be served here.
        num_slots: Adapter slots there are.
        new_courtesy: Makes what the building of one job is spaced out by.
    """

    def __init__(
        self,
        data: DataFolder,
        archive: Archive,
        post: Post,
        builder: JobBuilder,
        terms: Terms,
        num_slots: int,
        new_courtesy: Callable[[], Courtesy],
    ) -> None:
        self._data = data
        self._archive = archive
        self._post = post
        self._builder = builder
        self._terms = terms
        self._num_slots = num_slots
        self._new_courtesy = new_courtesy
        self._building: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()

    async def create(self, request: JobOrder) -> JobRecord:
        """Start a job; it is built after this returns.

        Raises:
            RequestError: A file is unknown, or a hyperparameter does not suit this replica.
            StateError: Another job of the adapter has not ended, or the slots are too few.
        """
        record = await self._write(lambda data: self._add(data, request))
        self._building[record.job_id] = asyncio.create_task(self._start(record))
        return record

    async def get(self, job_id: str) -> JobRecord:
        """Return one job."""
        return await asyncio.to_thread(self._data.jobs.get, job_id)

    async def list(
        self, *, after: str | None, limit: int, metadata: Mapping[str, str] | None
    ) -> Page[JobRecord]:
        """Return jobs, newest first, of which all have this metadata."""
        return await asyncio.to_thread(
            self._data.jobs.list, after=after, limit=limit, metadata=metadata
        )

    async def cancel(self, job_id: str) -> JobRecord:
        """End a job; what it published stays. Raises ``StateError`` when it has ended."""
        if (building := self._building.get(job_id)) is not None:
            building.cancel()
            await asyncio.wait((building,))
        adapter = (await self._unfinished(job_id)).adapter
        reply: Future[JobRecord] = Future()
        message = CancelJob(adapter=adapter, job_id=job_id, reply=reply)
        return await self._post.ask(message, reply)

    async def pause(self, job_id: str) -> JobRecord:
        """Let a job rest; raises ``StateError`` when it has ended."""
        record = await self._built(job_id)
        if record.status is JobStatus.PAUSED:
            return record
        return await self._turn_over(record, PauseJob, ResumeJob)

    async def resume(self, job_id: str) -> JobRecord:
        """Let a paused job go on; raises ``StateError`` when it is not paused."""
        record = await self._built(job_id)
        if record.status is not JobStatus.PAUSED:
            raise StateError(f"job {job_id} is {record.status}, not paused", code="job_not_paused")
        return await self._turn_over(record, ResumeJob, PauseJob)

    async def events(self, job_id: str, *, after: str | None, limit: int) -> Page[JobEvent]:
        """Return what happened to a job, newest first."""
        return await asyncio.to_thread(self._data.job_logs.events, job_id, after=after, limit=limit)

    async def checkpoints(
        self, job_id: str, *, after: str | None, limit: int
    ) -> Page[JobCheckpoint]:
        """Return the versions that a job published, newest first."""
        return await asyncio.to_thread(
            self._data.job_logs.checkpoints, job_id, after=after, limit=limit
        )

    async def _turn_over(
        self,
        record: JobRecord,
        wanted: type[PauseJob] | type[ResumeJob],
        opposite: type[PauseJob] | type[ResumeJob],
    ) -> JobRecord:
        """Let a job rest or go on, and the contrary if that cannot be put on record.

        The loop does it before it is written, and nobody could undo what the row does not say.
        """
        reply: Future[JobRecord] = Future()
        names = {"adapter": record.adapter, "job_id": record.job_id}
        try:
            return await self._post.ask(wanted(**names, reply=reply), reply)
        except Exception:
            self._post.send(opposite(**names, reply=Future()))
            raise

    def _add(self, data: DataFolder, request: JobOrder) -> JobRecord:
        """Check a request and write its row; in the writing thread."""
        rank = int(request.hyperparameters.get("rank", 1))
        try:
            self._terms.check_name(request.adapter)
            self._terms.check_rank(request.adapter, rank)
        except AdapterError as error:
            param = "rank" if rank > self._terms.layout.rank else "suffix"
            raise RequestError(str(error), param=param, code="invalid_value") from error
        for name in ("training_file", "validation_file"):
            _check_file(data, name, getattr(request, name))
        self._check_slots(len(data.jobs.unfinished()) + 1)
        return data.jobs.add(
            adapter=request.adapter,
            settings=requested_settings(
                request.hyperparameters, request.seed, self._terms.layout.rank
            ),
            is_continuous=request.is_continuous,
            training_file=request.training_file,
            validation_file=request.validation_file,
            metadata=request.metadata,
        )

    def _check_slots(self, num_jobs: int) -> None:
        num_needed = slots_for(num_jobs)
        if self._num_slots < num_needed:
            raise StateError(
                f"{num_jobs} jobs need {num_needed} adapter slots and lora.num_slots is "
                f"{self._num_slots}; cancel a job first",
                code="too_many_jobs",
            )

    async def _start(self, record: JobRecord) -> None:
        """Build a job and hand it to the loop, one at a time."""
        courtesy = self._new_courtesy()
        try:
            async with self._turn:
                built = await asyncio.to_thread(self._builder.build, record, courtesy)
            self._post.send(
                AddJob(job=built.job, record=record, base=built.base, warnings=built.warnings)
            )
            await self._catch_up(record, built)
        except asyncio.CancelledError:
            courtesy.stop()
            raise
        except Exception as error:
            _log.warning("job %s cannot be trained: %s", record.job_id, error)
            failure = error
            self._archive.write(lambda data: fail_job(data, record, failure))
        finally:
            del self._building[record.job_id]

    async def _catch_up(self, record: JobRecord, built: BuiltJob) -> None:
        """Tell the loop of feedback that came or went while the job was built."""
        adapter = record.adapter
        feedback = await asyncio.to_thread(self._data.feedback.samples, adapter)
        new = [item for item in feedback if item.feedback_id not in built.feedback_ids]
        samples = await asyncio.to_thread(self._builder.encode_feedback, record, new)
        self._post.send(AddSamples(adapter, samples))
        for feedback_id in built.feedback_ids - {item.feedback_id for item in feedback}:
            self._post.send(RemoveSample(adapter, feedback_id))

    async def _built(self, job_id: str) -> JobRecord:
        """Return a job that has not ended, once it is built."""
        if (building := self._building.get(job_id)) is not None:
            await asyncio.wait((building,))
        return await self._unfinished(job_id)

    async def _unfinished(self, job_id: str) -> JobRecord:
        record = await self.get(job_id)
        if record.status.has_ended:
            raise StateError(f"job {job_id} has ended: {record.status}", code="job_ended")
        return record

    async def _write(self, action: Callable[[DataFolder], T]) -> T:
        return await asyncio.wrap_future(self._archive.submit(action))


def slots_for(num_jobs: int) -> int:
    """Return the adapter slots that so many jobs need.

    Each has one active and one held version, and there must be room for the next to come.
    """
    return 2 * num_jobs + 1


def fail_job(data: DataFolder, record: JobRecord, error: Exception) -> None:
    """Write that a job could not be built."""
    text = str(error) if isinstance(error, CollmError) else f"{type(error).__name__}: {error}"
    data.job_logs.add_event(record.job_id, "error", text)
    details = {
        "code": getattr(error, "code", None) or "invalid_training_file",
        "message": text,
        "param": "training_file",
    }
    data.jobs.change(record.job_id, status=JobStatus.FAILED, error=details)


def _check_file(data: DataFolder, param: str, file_id: str | None) -> None:
    if file_id is None:
        return
    try:
        data.files.get(file_id)
    except UnknownObjectError as error:
        raise RequestError(str(error), param=param, code="not_found") from error
