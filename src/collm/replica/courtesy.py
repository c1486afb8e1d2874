"""Long work in Python that leaves the interpreter to the step loop."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
_STRETCH_S = 0.001
"""Work between two rests; about what the loop may wait for the interpreter anyway."""
_REST_SHARE = 4.0
"""Rest after a stretch of work, as a multiple of it."""


class StoppedError(Exception):
    """Nobody wants the work's result any more."""


class Courtesy:
    """Spaces out the steps of work that another thread does while requests are served.

    Reading and tokenizing hold Python's one interpreter lock, which every decode step needs too.
    """

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        """Give way while ``is_busy()``."""
        self._is_busy = is_busy
        self._has_stopped = threading.Event()

    def stop(self) -> None:
        """Let the work end with ``StoppedError`` at its next step; any thread may."""
        self._has_stopped.set()

    def spaced(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, resting now and then for longer than what was done with them took."""
        began_s = time.perf_counter()
        for item in items:
            if self._has_stopped.is_set():
                raise StoppedError
            yield item
            worked_s = time.perf_counter() - began_s
            if worked_s >= _STRETCH_S:
                if self._is_busy():
                    self._has_stopped.wait(worked_s * _REST_SHARE)
                began_s = time.perf_counter()
