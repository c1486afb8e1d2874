"""The thread that writes to the data folder, so that the loop never waits for a disk."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from collm.lora.peft_folder import save_peft
from collm.lora.state import AdapterState
from collm.lora.store import version_id
from collm.replica.inbox import Inbox, Promoted, PromotionFailed, Published, PublishFailed
from collm.store.data_folder import DataFolder
from collm.training.events import TrainingSnapshot
from collm.types import VersionId

_log = logging.getLogger(__name__)

CHECKPOINT_FILE = "training.safetensors"
"""Tensors of a training checkpoint."""
CHECKPOINT_BASE = "base_digest"
"""Entry of a checkpoint's meta that names the base model it belongs to."""


@dataclass(frozen=True, slots=True)
class _Task:
    """Something to write, and whom to tell when it cannot be written."""

    write: Callable[[], None]
    failed: Callable[[Exception], None]


class Archive:
    """Writes in the order asked for; answers come back through the inbox.

    A version is written before it is staged, and the decision to promote it before the flip, so
    whatever was served is on disk under the name that it was served by.
    """

    def __init__(self, data: DataFolder, base_model: str, base_digest: str, inbox: Inbox) -> None:
        """Write to ``data``; ``base_digest`` names the weights that versions belong to."""
        self._data = data
        self._base_model = base_model
        self._base_digest = base_digest
        self._inbox = inbox
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="collm-archive", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Finish what was asked for and end the thread."""
        self._tasks.put(None)
        self._thread.join()

    def publish(
        self,
        adapter: str,
        state: AdapterState,
        metadata: Mapping[str, str],
        numbers: Mapping[str, Any],
    ) -> None:
        """Write a new version under the adapter's next number; then ``Published`` arrives.

        If it cannot be written, ``PublishFailed`` does.
        """

        def write() -> None:
            label = str(self._data.versions.next_number(adapter))
            digest = state.digest()
            self._data.versions.publish(
                adapter,
                label,
                digest=digest,
                base_digest=self._base_digest,
                rank=state.layout.rank,
                metadata=metadata,
                write=lambda folder: save_peft(state, folder, self._base_model),
            )
            self._inbox.put(
                Published(
                    adapter=adapter,
                    version=version_id(adapter, label),
                    state=state,
                    metadata=metadata,
                    numbers=numbers,
                    is_local=True,
                    digest=digest,
                )
            )

        def failed(error: Exception) -> None:
            self._inbox.put(PublishFailed(adapter, state, error))

        self._tasks.put(_Task(write, failed))

    def record_promotion(self, published: Published, reason: str) -> None:
        """Write the decision to promote a staged version; then ``Promoted`` arrives.

        If it cannot be written, ``PromotionFailed`` does.
        """

        def write() -> None:
            self._data.decisions.promote(published.version, reason, published.numbers)
            if not published.is_local:
                self._data.checkpoints.discard(published.adapter)
            self._inbox.put(Promoted(published))

        def failed(error: Exception) -> None:
            self._inbox.put(PromotionFailed(published, error))

        self._tasks.put(_Task(write, failed))

    def record_rollback(
        self, adapter: str, version: VersionId, then: Callable[[Exception | None], None]
    ) -> None:
        """Write the return to ``version``, which is in force already.

        The training state on disk goes with it: it would bring back what was taken back.

        ``then`` is called in the archive's thread, with what went wrong if it was not written.
        """

        def write() -> None:
            self._data.decisions.rollback(version, "asked for", {})
            self._data.checkpoints.discard(adapter)
            then(None)

        self._tasks.put(_Task(write, then))

    def save_checkpoint(self, snapshot: TrainingSnapshot) -> None:
        """Write a job's training state, marked with the base that it belongs to."""

        def fill(folder: Path) -> None:
            save_file(snapshot.tensors, folder / CHECKPOINT_FILE)

        def write() -> None:
            meta = {**snapshot.meta, CHECKPOINT_BASE: self._base_digest}
            self._data.checkpoints.save(snapshot.adapter, fill, meta)

        self._tasks.put(_Task(write, lambda _: None))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task.write()
            except Exception as error:
                # A full disk must not end serving; what failed is not acknowledged.
                _log.exception("writing to the data folder failed")
                task.failed(error)
