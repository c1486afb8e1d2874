"""An endless shuffled order over samples that come and go."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from collm.training.corpus import SamplePool
from collm.training.samples import TokenSample

_MAX_INSERTED = 100
"""Additions up to this many are sorted in one by one; for more, the order is drawn anew."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an order is: enough to go on after a restart, an addition or a removal."""

    epoch: int = 0
    key: int | None = None
    """Sort key of the sample dealt last; ``None`` at the beginning of the epoch."""


class Order:
    """Deals the samples of a pool, each once per epoch, in a new random order every epoch.

    A sample's key is a hash of seed, epoch and id, and an epoch deals by rising keys. So a place
    means the same whatever is added or removed meanwhile; what is added with a smaller key waits
    for the next epoch.
    """

    def __init__(self, pool: SamplePool, seed: str) -> None:
        """Deal from ``pool``, beginning with epoch 0."""
        self._pool = pool
        self._seed = seed
        self._num_seen = -1
        self._ids: list[str] = []
        self._keys: list[int] = []
        self._next = 0
        self._place = Place()

    @property
    def place(self) -> Place:
        """Where the order goes on."""
        self._settle()
        return self._place

    @property
    def dealt_share(self) -> float:
        """Share of this epoch's samples that were dealt."""
        self._settle()
        return self._next / len(self._ids) if self._ids else 0.0

    def seek(self, place: Place) -> None:
        """Go on from ``place``."""
        if place.epoch != self._place.epoch:
            self._num_seen = -1
        self._place = place
        self._stand()

    def peek(self) -> TokenSample | None:
        """Return what ``take`` would deal; ``None`` when the pool is empty."""
        self._settle()
        return self._pool.samples[self._ids[self._next]] if self._ids else None

    def take(self) -> TokenSample:
        """Deal the next sample, and begin the next epoch after the last one."""
        sample = self.peek()
        assert sample is not None, "an order needs samples"
        self._place = Place(self._place.epoch, self._keys[self._next])
        self._next += 1
        self._settle()
        return sample

    def _settle(self) -> None:
        """Stand before a sample that is still in the pool, if there is any."""
        if not self._pool.samples:
            self._ids, self._keys, self._num_seen = [], [], -1
            return
        if self._num_seen != len(self._pool.additions):
            self._catch_up()
        while self._is_at_end():
            self._place = Place(self._place.epoch + 1)
            self._draw()

    def _is_at_end(self) -> bool:
        """Pass over what was removed; return whether nothing is left of the epoch."""
        samples = self._pool.samples
        while self._next < len(self._ids) and self._ids[self._next] not in samples:
            self._next += 1
        return self._next == len(self._ids)

    def _catch_up(self) -> None:
        """Sort in what was added since the order was drawn."""
        added = self._pool.additions[self._num_seen :]
        if self._num_seen < 0 or len(added) > _MAX_INSERTED:
            self._draw()
            return
        self._num_seen = len(self._pool.additions)
        samples = [self._pool.samples[i] for i in dict.fromkeys(added) if i in self._pool.samples]
        if not samples:
            return
        for sample, key in zip(samples, self._mixed(samples).tolist(), strict=True):
            index = bisect_left(self._keys, key)
            if self._keys[index : index + 1] != [key]:
                self._keys.insert(index, key)
                self._ids.insert(index, sample.sample_id)
        self._stand()

    def _draw(self) -> None:
        """Sort the pool by this epoch's keys: some milliseconds for 15,000 samples."""
        self._num_seen = len(self._pool.additions)
        ids = list(self._pool.samples)
        keys, indices = self._mixed(self._pool.samples.values()).sort(stable=True)
        self._keys = keys.tolist()
        self._ids = [ids[index] for index in indices.tolist()]
        self._stand()

    def _stand(self) -> None:
        key = self._place.key
        self._next = 0 if key is None else bisect_right(self._keys, key)

    def _mixed(self, samples: Collection[TokenSample]) -> Tensor:
        """Return the samples' keys in this epoch, signed 64 bits.

        Products wrap around, so that every step is one-to-one: different hashes, different keys.
        """
        random = Random(f"{self._seed}/{self._place.epoch}")
        keys = torch.tensor([sample.order_hash for sample in samples])
        for _ in range(2):
            offset, factor = random.getrandbits(63), random.getrandbits(63) | 1
            keys = (keys + offset) * factor
            keys = keys ^ (keys >> 32)
        return keys
