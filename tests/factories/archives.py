"""What the step loop writes, kept in memory: at once, or held back until a test says so."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from collm.errors import StateError
from collm.lora.state import AdapterState
from collm.lora.store import version_id
from collm.replica.archive import Archive
from collm.replica.inbox import Inbox
from collm.store.jobs import JobRecord, JobStatus
from collm.store.versions import PublishedVersion
from collm.training.events import TrainingSnapshot
from collm.types import VersionId


class HeldWorker:
    """Writes on the spot or, while ``is_held``, when told to."""

    def __init__(self) -> None:
        self._held: list[tuple[Callable[[], None], Callable[[Exception], None]]] = []
        self.is_held = False

    def put(self, write: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        if self.is_held:
            self._held.append((write, failed))
        else:
            _carry_out(write, failed)

    def write_held(self) -> None:
        """Write the first thing held back."""
        _carry_out(*self._held.pop(0))

    def fail_held(self, error: Exception) -> None:
        """Fail to write the first thing held back."""
        self._held.pop(0)[1](error)

    @property
    def num_held(self) -> int:
        return len(self._held)


def _carry_out(write: Callable[[], None], failed: Callable[[Exception], None]) -> None:
    try:
        write()
    except Exception as error:
        failed(error)


class MemoryFolder:
    """What the step loop has written, in memory; stands for the folder and each of its stores."""

    def __init__(self) -> None:
        self.decisions = self.checkpoints = self.jobs = self.job_logs = self.pins = self
        self.log: list[str] = []
        self.states: dict[VersionId, AdapterState] = {}
        self.refusals: list[tuple[str, str, Mapping[str, Any]]] = []
        self.changes: dict[str, dict[str, Any]] = defaultdict(dict)
        """What changed in each job's row."""
        self.notes: list[str] = []
        self.job_checkpoints: list[tuple[VersionId, int]] = []
        self.discarded: list[str] = []
        self.kept_places: list[str] = []
        self.pinned: list[VersionId] = []

    def promote(self, version: VersionId, reason: str, numbers: Mapping[str, Any]) -> None:
        self.log.append(f"promoted {version}")

    def rollback(self, version: VersionId, reason: str, numbers: Mapping[str, Any]) -> None:
        self.log.append(f"rolled back to {version}: {reason}")

    def return_to_base(self, adapter: str, reason: str, numbers: Mapping[str, Any]) -> None:
        self.log.append(f"{adapter} returned to the base: {reason}")

    def refuse(self, adapter: str, version: None, reason: str, numbers: Mapping[str, Any]) -> None:
        self.refusals.append((adapter, reason, numbers))

    def unload(self, adapter: str, reason: str) -> None:
        self.log.append(f"unloaded {adapter}")

    def discard(self, adapter: str) -> None:
        self.discarded.append(adapter)

    def keep_place(self, adapter: str) -> None:
        self.kept_places.append(adapter)

    def add(self, version: VersionId) -> None:
        self.log.append(f"pinned {version}")
        self.pinned.append(version)

    def remove(self, version: VersionId) -> None:
        self.log.append(f"unpinned {version}")
        self.pinned.remove(version)

    def all(self) -> tuple[VersionId, ...]:
        return tuple(self.pinned)

    def change(self, job_id: str, **changes: Any) -> JobRecord:
        row = self.changes[job_id]
        if "status" in row and row["status"].has_ended:
            raise StateError("it has ended", code="job_ended")
        row.update((key, value) for key, value in changes.items() if value is not None)
        return job_record(job_id, **row)

    def add_event(self, job_id: str, level: str, text: str, *_: object) -> None:
        self.notes.append(f"{level}: {text}")

    def add_checkpoint(
        self, job_id: str, version: VersionId, step: int, metrics: Mapping[str, Any]
    ) -> None:
        self.job_checkpoints.append((version, step))


class MemoryLibrary:
    """Numbers versions and keeps their states."""

    base_digest = "base digest"

    def __init__(self, folder: MemoryFolder) -> None:
        self._folder = folder
        self._numbers: dict[str, int] = defaultdict(int)

    def publish(
        self, adapter: str, state: AdapterState, metadata: Mapping[str, str]
    ) -> PublishedVersion:
        self._numbers[adapter] += 1
        label = str(self._numbers[adapter])
        version = version_id(adapter, label)
        self._folder.states[version] = state
        self._folder.log.append(f"published {version}")
        return PublishedVersion(
            version=version,
            adapter=adapter,
            label=label,
            digest=state.digest(),
            base_digest=self.base_digest,
            rank=state.layout.rank,
            metadata=metadata,
            published_at_s=0.0,
            folder=Path("nowhere"),
        )


class InstantArchive(Archive):
    """The real one over a folder in memory, at once or held back."""

    def __init__(self, inbox: Inbox) -> None:
        self.folder, self.worker = MemoryFolder(), HeldWorker()
        library: Any = MemoryLibrary(self.folder)
        folder: Any = self.folder
        super().__init__(folder, library, inbox, self.worker)
        self.snapshots: list[TrainingSnapshot] = []

    def write(self, action: Any, then: Any = lambda _: None) -> None:
        """Hold back what is about versions; rows about jobs are never in the way."""
        if action.__module__ in ("collm.replica.jobs", "collm.replica.learner"):
            _carry_out(lambda: then(action(self.folder)), then)
        else:
            super().write(action, then)

    def save_checkpoint(
        self, snapshot: TrainingSnapshot, job_id: str, on_saved: Callable[[], None] = lambda: None
    ) -> None:
        self.snapshots.append(snapshot)
        on_saved()


def job_record(job_id: str = "ftjob-1", adapter: str = "tutor", **fields: Any) -> JobRecord:
    """The row of a job as it is when training begins."""
    defaults: dict[str, Any] = {
        "status": JobStatus.QUEUED,
        "training_file": None,
        "validation_file": None,
        "settings": {},
        "metadata": {},
        "is_continuous": True,
        "is_configured": False,
        "created_at_s": 0.0,
        "started_at_s": None,
        "finished_at_s": None,
        "num_trained_tokens": 0,
        "result": None,
        "error": None,
    }
    return JobRecord(job_id=job_id, adapter=adapter, **(defaults | fields))
