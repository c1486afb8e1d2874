"""The thread that writes to the data folder, so that the loop never waits for a disk."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from collm.lora.peft_folder import save_peft
from collm.lora.state import AdapterState
from collm.lora.store import version_id
from collm.replica.inbox import Inbox, Promoted, Published
from collm.store.data_folder import DataFolder
from collm.training.events import TrainingSnapshot
from collm.types import VersionId

_log = logging.getLogger(__name__)


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
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
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
        """Write a new version under the adapter's next number; then ``Published`` arrives."""

        def task() -> None:
            label = str(self._data.versions.next_number(adapter))
            self._data.versions.publish(
                adapter,
                label,
                digest=state.digest(),
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
                )
            )

        self._tasks.put(task)

    def record_promotion(self, published: Published, reason: str) -> None:
        """Write the decision to promote a staged version; then ``Promoted`` arrives."""

        def task() -> None:
            self._data.decisions.promote(published.version, reason, published.numbers)
            self._inbox.put(Promoted(published))

        self._tasks.put(task)

    def record_rollback(self, version: VersionId, then: Callable[[], None]) -> None:
        """Write the return to ``version``, which is in force already; then call ``then``."""

        def task() -> None:
            self._data.decisions.rollback(version, "asked for", {})
            then()

        self._tasks.put(task)

    def save_checkpoint(self, snapshot: TrainingSnapshot) -> None:
        """Write a job's training state."""

        def write(folder: Path) -> None:
            save_file(snapshot.tensors, folder / "training.safetensors")

        self._tasks.put(lambda: self._data.checkpoints.save(snapshot.adapter, write, snapshot.meta))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                # A full disk must not end serving; what failed is not acknowledged.
                _log.exception("writing to the data folder failed")
