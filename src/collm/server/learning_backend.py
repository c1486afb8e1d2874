"""What the routes for training files and fine-tuning jobs need, as protocols.

The replica's own classes fit in production; tests keep everything in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from collm.store.job_logs import JobCheckpoint, JobEvent
from collm.store.jobs import JobRecord
from collm.store.pages import Order, Page
from collm.store.uploads import StoredFile


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A fine-tuning job that a client asks for; every field is checked, no file is looked up."""

    adapter: str
    """Adapter to train: an existing one goes on learning, a new name starts one."""
    base_model: str
    """The model id that the client named; always the one being served."""
    training_file: str | None
    """Id of an uploaded file; ``None`` only for a continuous job, which follows its feedback."""
    validation_file: str | None
    """Id of an uploaded file to hold out instead of a share of the training file."""
    is_continuous: bool
    """Whether the job goes on until it is cancelled."""
    hyperparameters: Mapping[str, int | float] = field(default_factory=dict)
    """Only what the client chose; see ``learning_schemas.Hyperparameters``."""
    seed: int | None = None
    """``None`` leaves the choice to the replica."""
    metadata: Mapping[str, str] = field(default_factory=dict)


class Uploads(Protocol):
    """Training files on this replica."""

    async def add(self, filename: str, purpose: str, content: bytes) -> StoredFile:
        """Check every line and keep the file.

        Raises:
            RequestError: A line is no sample; names the line and the field.
        """
        ...

    async def list(
        self, *, after: str | None, limit: int, purpose: str | None, order: Order
    ) -> Page[StoredFile]:
        """Return files by age; raises ``UnknownObjectError`` for an unknown ``after``."""
        ...

    async def get(self, file_id: str) -> StoredFile:
        """Return one file's row; raises ``UnknownObjectError``."""
        ...

    async def read(self, file_id: str) -> bytes:
        """Return a file's content as it was uploaded; raises ``UnknownObjectError``."""
        ...

    async def delete(self, file_id: str) -> None:
        """Remove a file.

        Raises:
            UnknownObjectError: There is no such file.
            StateError: A job that has not ended uses it.
        """
        ...


class FineTuning(Protocol):
    """Fine-tuning jobs on this replica.

    Every method that takes a job's id raises ``UnknownObjectError`` for an unknown one.
    """

    async def create(self, request: JobRequest) -> JobRecord:
        """Start a job.

        Its settings hold the request's hyperparameters and ``seed``, whatever else; an error that
        ends it later holds ``code``, ``message`` and ``param``.

        Raises:
            RequestError: A file is unknown, or a hyperparameter does not suit this replica.
            StateError: Another job of the adapter has not ended.
        """
        ...

    async def get(self, job_id: str) -> JobRecord:
        """Return one job."""
        ...

    async def list(
        self, *, after: str | None, limit: int, metadata: Mapping[str, str] | None
    ) -> Page[JobRecord]:
        """Return jobs, newest first, of which all have this metadata."""
        ...

    async def cancel(self, job_id: str) -> JobRecord:
        """End a job; what it published stays. Raises ``StateError`` when it has ended."""
        ...

    async def pause(self, job_id: str) -> JobRecord:
        """Let a job rest; raises ``StateError`` when it has ended."""
        ...

    async def resume(self, job_id: str) -> JobRecord:
        """Let a paused job go on; raises ``StateError`` when it is not paused."""
        ...

    async def events(self, job_id: str, *, after: str | None, limit: int) -> Page[JobEvent]:
        """Return what happened to a job, newest first."""
        ...

    async def checkpoints(
        self, job_id: str, *, after: str | None, limit: int
    ) -> Page[JobCheckpoint]:
        """Return the versions that a job published, newest first."""
        ...
