"""Sequences that wait for admission, in arrival order."""

from bisect import bisect_left, insort
from collections import Counter
from operator import attrgetter

from collm.engine.sequence import Sequence
from collm.types import SequenceProgress

_BY_ORDER = attrgetter("order")
_KEPT_SHARE = 8
"""One of so many places is kept."""


class WaitingQueue:
    """Waiting sequences sorted by ``order``; a preempted one returns ahead of later arrivals.

    A waiting sequence does not change, so its progress is computed once, and a long queue costs a
    step nothing.

    Args:
        max_len: Sequences that new requests may fill it with; preempted ones come on top.
    """

    def __init__(self, max_len: int) -> None:
        self._max_len = max_len
        self._sequences: list[Sequence] = []
        self._progress: list[SequenceProgress] = []
        self._num_by_model: Counter[str] = Counter()
        self._snapshot: tuple[SequenceProgress, ...] | None = ()
        self.num_prefill_tokens = 0
        """Tokens still to prefill, of all that wait."""

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, index: int) -> Sequence:
        return self._sequences[index]

    def push(self, sequence: Sequence) -> None:
        """Insert a sequence at its place."""
        insort(self._sequences, sequence, key=_BY_ORDER)
        index = self._index(sequence)
        progress = sequence.progress(is_running=False)
        self._progress.insert(index, progress)
        self._num_by_model[sequence.request.model] += 1
        self.num_prefill_tokens += _num_prefill(progress)
        self._snapshot = None

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        index = self._index(sequence)
        self.num_prefill_tokens -= _num_prefill(self._progress[index])
        del self._sequences[index], self._progress[index]
        model = sequence.request.model
        self._num_by_model[model] -= 1
        if not self._num_by_model[model]:
            del self._num_by_model[model]
        self._snapshot = None

    def num_places(self, model: str) -> int:
        """Return how many more sequences that ask for ``model`` by this name may be pushed.

        Some places are kept for models of which nothing waits: no flood of another shuts them out.
        """
        num_kept = self._max_len // _KEPT_SHARE if model in self._num_by_model else 0
        return max(0, self._max_len - num_kept - len(self._sequences))

    def models(self) -> frozenset[str]:
        """Return the model names that sequences ask for."""
        return frozenset(self._num_by_model)

    def progress(self) -> tuple[SequenceProgress, ...]:
        """Return the progress of all waiting sequences, in order."""
        if self._snapshot is None:
            self._snapshot = tuple(self._progress)
        return self._snapshot

    def _index(self, sequence: Sequence) -> int:
        index = bisect_left(self._sequences, sequence.order, key=_BY_ORDER)
        assert self._sequences[index] is sequence
        return index


def _num_prefill(progress: SequenceProgress) -> int:
    """Return what a sequence has to prefill; one token alone is a decode."""
    num_tokens = progress.num_remaining_prefill
    return num_tokens if num_tokens > 1 else 0
