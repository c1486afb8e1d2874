"""An endless, resumable, shuffled order over an adapter's samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from collm.training.microbatch import MicroBatch, pack
from collm.training.samples import TokenSample


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a stream is: enough to go on after a restart with the same samples and seed."""

    epoch: int = 0
    index: int = 0


class SampleStream:
    """Deals samples in a new random order every epoch.

    Args:
        samples: At least one.
        seed: Names the orders; epoch ``e`` has the same order whenever it is dealt.
        cursor: Where to begin.
    """

    def __init__(self, samples: Sequence[TokenSample], seed: int, cursor: Cursor) -> None:
        assert samples, "a stream needs samples"
        self._samples = samples
        self._seed = seed
        self._cursor = cursor
        self._order = self._shuffle(cursor.epoch)

    @property
    def cursor(self) -> Cursor:
        """Where the next sample comes from."""
        return self._cursor

    def next(self, max_tokens: int) -> MicroBatch:
        """Return the next samples that fit ``max_tokens`` together; always at least one."""
        chosen = [self._take()]
        num_tokens = len(chosen[0].token_ids)
        while True:
            following = self._samples[self._order[self._cursor.index]]
            num_tokens += len(following.token_ids)
            if num_tokens > max_tokens:
                return pack(chosen)
            chosen.append(self._take())

    def _take(self) -> TokenSample:
        sample = self._samples[self._order[self._cursor.index]]
        epoch, index = self._cursor.epoch, self._cursor.index + 1
        if index == len(self._order):
            epoch, index = epoch + 1, 0
            self._order = self._shuffle(epoch)
        self._cursor = Cursor(epoch, index)
        return sample

    def _shuffle(self, epoch: int) -> list[int]:
        order = list(range(len(self._samples)))
        Random(f"{self._seed}/{epoch}").shuffle(order)
        return order
