"""When a job's state is copied for a checkpoint."""

from collections.abc import Callable, Generator, Iterator

from collm.pacing.quanta import Quantum

Program = Iterator[Quantum]
"""A generator that yields a quantum and performs it when resumed."""


class Snapshots:
    """Knows whether a copy was asked for, and what was copied last.

    Args:
        take: Copies the state as of the last step, hands it out, and returns that step's number.
    """

    def __init__(self, take: Callable[[], Generator[Quantum, None, int]]) -> None:
        self._take = take
        self._saved_at_step: int | None = 0
        """Step of the latest snapshot; ``None`` when something else changed since."""
        self.is_due = False

    def request(self, num_steps: int) -> None:
        """Ask for a snapshot, unless nothing changed since the last, after ``num_steps`` steps."""
        self.is_due = num_steps != self._saved_at_step

    def saved(self, num_steps: int) -> None:
        """Note that the state is on disk as it is, after ``num_steps`` steps."""
        self._saved_at_step = num_steps

    def outdated(self) -> None:
        """Note that the state is another one than was saved, whatever its step."""
        self._saved_at_step = None

    def program(self) -> Program:
        """Take the snapshot that is due."""
        self._saved_at_step = yield from self._take()
        self.is_due = False
