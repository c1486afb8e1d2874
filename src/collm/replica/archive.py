"""What the replica writes to its data folder: in order, by another thread than the loop's."""

import hashlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, TypeVar

from safetensors.torch import save_file

from collm.lora.peft_folder import weights_file
from collm.lora.state import AdapterState
from collm.replica.inbox import Inbox, Promoted, PromotionFailed, Published, PublishFailed, tell
from collm.replica.library import Library
from collm.store.data_folder import DataFolder
from collm.training.events import TrainingSnapshot

_log = logging.getLogger(__name__)
T = TypeVar("T")

CHECKPOINT_FILE = "training.safetensors"
"""Tensors of a training checkpoint."""
CHECKPOINT_BASE = "base_digest"
"""Entry of a checkpoint's meta that names the base model it belongs to."""
CHECKPOINT_JOB = "job_id"
"""Entry of a checkpoint's meta that names the job it belongs to."""

_KEPT_ROUNDS = 3
"""Rounds before the latest whose updates are kept."""


class Worker(Protocol):
    """Carries out writes in the order asked for."""

    def put(self, write: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Ask for ``write``; if it raises, ``failed`` is told."""
        ...


class Archive:
    """Writes in the order asked for; answers come back through the inbox or a future.

    A version is written before it is staged, and the decision to promote it before the flip, so
    whatever was served is on disk under the name that it was served by.
    """

    def __init__(self, data: DataFolder, library: Library, inbox: Inbox, worker: Worker) -> None:
        """Let ``worker`` write to ``data``, and versions by way of ``library``."""
        self._data = data
        self._library = library
        self._inbox = inbox
        self._worker = worker

    def write(
        self,
        action: Callable[[DataFolder], T],
        then: Callable[[T | Exception], None] = lambda _: None,
    ) -> None:
        """Carry out ``action`` in the writing thread, and call ``then`` there with the outcome."""

        def failed(error: Exception) -> None:
            _log.error("writing to the data folder failed", exc_info=error)
            then(error)

        self._worker.put(lambda: then(action(self._data)), failed)

    def submit(self, action: Callable[[DataFolder], T]) -> "Future[T]":
        """Carry out ``action`` in the writing thread; what it raises is its caller's to judge."""
        reply: Future[T] = Future()
        self._worker.put(lambda: tell(reply, action(self._data)), lambda error: tell(reply, error))
        return reply

    def publish(
        self,
        adapter: str,
        state: AdapterState,
        metadata: Mapping[str, str],
        numbers: Mapping[str, Any],
    ) -> None:
        """Write a copy of a shadow under the adapter's next number; then ``Published`` arrives.

        If it cannot be written, ``PublishFailed`` does.
        """

        def then(outcome: Published | PublishFailed | Exception) -> None:
            if isinstance(outcome, Exception):
                outcome = PublishFailed(adapter, state, outcome)
            self._inbox.put(outcome)

        self.write(
            lambda _: Published.local(
                self._library.publish(adapter, state, metadata), state, numbers
            ),
            then,
        )

    def record_promotion(self, published: Published) -> None:
        """Write the decision to promote a staged version; then ``Promoted`` arrives.

        If it cannot be written, ``PromotionFailed`` does. Of the training state on disk only its
        place survives a version from outside, which training is carried over to.
        """

        def action(data: DataFolder) -> None:
            if not published.is_local:  # first, so that no decision stands if there is no room
                data.checkpoints.keep_place(published.adapter)
            data.decisions.promote(published.version, published.reason, published.numbers)

        def then(outcome: Exception | None) -> None:
            done = Promoted(published)
            self._inbox.put(done if outcome is None else PromotionFailed(published, outcome))

        self.write(action, then)

    def save_checkpoint(
        self,
        snapshot: TrainingSnapshot,
        job_id: str,
        on_saved: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a job's training state, marked with the base and the job that it belongs to.

        ``on_saved`` is called in the writing thread once it is on disk.
        """

        def fill(folder: Path) -> None:
            save_file(snapshot.tensors, folder / CHECKPOINT_FILE)

        meta = {
            **snapshot.meta,
            CHECKPOINT_BASE: self._library.base_digest,
            CHECKPOINT_JOB: job_id,
        }

        def then(outcome: Exception | None) -> None:
            if outcome is None:
                on_saved()

        self.write(lambda data: data.checkpoints.save(snapshot.adapter, fill, meta), then)

    def save_update(
        self,
        adapter: str,
        number: int,
        member: str,
        state: AdapterState,
        then: Callable[[str | Exception], None],
    ) -> None:
        """Write what was learned for a round, drop what is older than any coordinator asks for.

        Args:
            adapter: Whose.
            number: The round's.
            member: This replica's name.
            state: The update.
            then: Called in the writing thread with the SHA-256 of the file, or why there is none.
        """

        def action(data: DataFolder) -> str:
            content = weights_file(state, self._library.base_digest)
            data.updates.save(adapter, number, member, content)
            data.updates.discard_before(adapter, number - _KEPT_ROUNDS)
            return hashlib.sha256(content).hexdigest()

        self.write(action, then)
