"""How a child process shows its parent that it works on its start: it says so, again and again."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import typer

from collm.cluster.hosts import STARTING

_EVERY_S = 5.0
_WORKING_S = 0.02
"""Processor time between two looks of a process that works; one that hangs takes a tenth of it."""


class StartSigns:
    """Says every few seconds that this process is starting, as long as it computes.

    Args:
        processor_time_s: Time for which the process has computed so far.
        say: Says a line to the parent.
    """

    def __init__(
        self,
        processor_time_s: Callable[[], float] = time.process_time,
        say: Callable[[str], None] = typer.echo,
    ) -> None:
        self._processor_time_s = processor_time_s
        self._say = say
        self._has_ended = threading.Event()
        self._is_waiting = False
        self._seen_s = 0.0

    def begin(self) -> None:
        """Say so from now on, in a thread of its own."""
        self._seen_s = self._processor_time_s()
        threading.Thread(target=self._work, name="start signs", daemon=True).start()

    def end(self) -> None:
        """Say no more."""
        self._has_ended.set()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Say so inside whatever comes, for what is waited for has limits of its own.

        Another process may be fetching the model.
        """
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def look(self) -> None:
        """Say so if the process has worked since the last look."""
        now_s = self._processor_time_s()
        if self._is_waiting or now_s - self._seen_s >= _WORKING_S:
            self._say(STARTING)
        self._seen_s = now_s

    def _work(self) -> None:
        with contextlib.suppress(OSError):  # nobody listens: the parent is gone
            while not self._has_ended.wait(_EVERY_S):
                self.look()
