"""Sequences that wait for admission, in arrival order."""

from bisect import bisect_left, insort
from operator import attrgetter

from collm.engine.sequence import Sequence
from collm.types import SequenceProgress

_BY_ORDER = attrgetter("order")


class WaitingQueue:
    """Waiting sequences sorted by ``order``; a preempted one returns ahead of later arrivals.

    A waiting sequence does not change, so its progress is computed once, and a long queue costs a
    step nothing.
    """

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self._progress: list[SequenceProgress] = []
        self._snapshot: tuple[SequenceProgress, ...] | None = ()

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, index: int) -> Sequence:
        return self._sequences[index]

    def push(self, sequence: Sequence) -> None:
        """Insert a sequence at its place."""
        insort(self._sequences, sequence, key=_BY_ORDER)
        index = self._index(sequence)
        self._progress.insert(index, sequence.progress(is_running=False))
        self._snapshot = None

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        index = self._index(sequence)
        del self._sequences[index], self._progress[index]
        self._snapshot = None

    def progress(self) -> tuple[SequenceProgress, ...]:
        """Return the progress of all waiting sequences, in order."""
        if self._snapshot is None:
            self._snapshot = tuple(self._progress)
        return self._snapshot

    def _index(self, sequence: Sequence) -> int:
        index = bisect_left(self._sequences, sequence.order, key=_BY_ORDER)
        assert self._sequences[index] is sequence
        return index
