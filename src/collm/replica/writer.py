"""The thread that writes to the data folder, so that the loop never waits for a disk."""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from collm.replica.threads import alone

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Task:
    """Something to write, and whom to tell when it cannot be written."""

    write: Callable[[], None]
    failed: Callable[[Exception], None]


class Writer:
    """Carries out writes one at a time, in the order asked for; any thread may ask.

    Args:
        upkeep: Called in the writing thread again and again, between writes.
        interval_s: Time between two such calls.
    """

    def __init__(self, upkeep: Callable[[], None], interval_s: float) -> None:
        self._upkeep = upkeep
        self._interval_s = interval_s
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=alone, args=(self._work,), name="collm-writer", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Finish what was asked for and end the thread."""
        self._tasks.put(None)
        self._thread.join()

    def put(self, write: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Ask for ``write``; if it raises, ``failed`` is told. Both run in the writing thread."""
        self._tasks.put(_Task(write, failed))

    def _work(self) -> None:
        due_s = time.monotonic() + self._interval_s
        while True:
            wait_s = due_s - time.monotonic()
            if wait_s <= 0:
                due_s = time.monotonic() + self._interval_s
                _carry_out(_Task(self._upkeep, _log_failure))
                continue
            with contextlib.suppress(queue.Empty):
                task = self._tasks.get(timeout=wait_s)
                if task is None:
                    return
                _carry_out(task)


def _log_failure(error: Exception) -> None:
    _log.error("upkeep of the data folder failed", exc_info=error)


def _carry_out(task: _Task) -> None:
    try:
        task.write()
    except Exception as error:
        # A full disk must not end serving; what failed is not acknowledged.
        _tell(task, error)


def _tell(task: _Task, error: Exception) -> None:
    try:
        task.failed(error)
    except Exception:
        # Without this thread nothing would be written any more, and nobody told.
        _log.exception("nobody could be told that a write failed: %s", error)
