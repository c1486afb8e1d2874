"""Which held-out samples a comparison reads, and in which order."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import zip_longest

from collm.gate.config import GENERAL

_MIN_OWN_PER_GENERAL = 3
"""With one slice of its own, an adapter would otherwise spend half of each comparison on text that
only guards against forgetting; by the default minimum of 24 samples there are 8 of it."""


class Rotation:
    """Deals held-out samples, the slices in turn, from a starting point that moves on.

    The samples of a slice stand in a circle, ordered by a hash of their ids, so that the order has
    nothing to do with content or age and keeps its neighbours when samples come and go. A
    comparison reads on from the slice's starting point. The point then moves by ``rotate_share`` of
    what was read: most losses of the served version stay known, and in time every sample is used.

    Args:
        rotate_share: Share of a comparison's samples that the next one replaces, in [0, 1].
    """

    def __init__(self, rotate_share: float) -> None:
        self._share = rotate_share
        self._starts: dict[str, bytes] = {}
        """Per slice, the hash from which the next comparison reads."""
        self._carried: dict[str, float] = {}
        """Per slice, what was too little to move by a whole sample."""
        self._order: list[tuple[str, str]] = []
        self._circles: dict[str, list[str]] = {}

    def order(self, samples_by_slice: Mapping[str, Sequence[str]]) -> list[str]:
        """Return every sample id once, in the order in which the next comparison reads them.

        Slices take turns; general text comes once a turn, and after every third sample at most.
        """
        self._circles = {
            name: self._from_start(name, ids) for name, ids in sorted(samples_by_slice.items())
        }
        own = {name: ids for name, ids in self._circles.items() if name != GENERAL}
        general = [(GENERAL, sample_id) for sample_id in self._circles.get(GENERAL, [])]
        gap = max(_MIN_OWN_PER_GENERAL, len(own))
        self._order = list(_spread(list(_in_turn(own)), general, gap))
        return [sample_id for _, sample_id in self._order]

    def advance(self, used_ids: Collection[str]) -> None:
        """Move the starting points on after a comparison that read these of the latest order.

        Raises:
            ValueError: One of them was not in that order.
        """
        slices = {sample_id: name for name, sample_id in self._order}
        if unknown := set(used_ids) - slices.keys():
            raise ValueError(f"samples {sorted(unknown)} are not in the latest order")
        for name, count in Counter(slices[sample_id] for sample_id in used_ids).items():
            moved = self._carried.get(name, 0.0) + self._share * count
            circle = self._circles[name]
            self._starts[name] = _place(circle[int(moved) % len(circle)])
            self._carried[name] = moved % 1.0
        self._order = []

    def _from_start(self, name: str, sample_ids: Sequence[str]) -> list[str]:
        start = self._starts.get(name, b"")
        placed = sorted((_place(sample_id), sample_id) for sample_id in sample_ids)
        behind = [sample_id for place, sample_id in placed if place < start]
        return [sample_id for place, sample_id in placed if place >= start] + behind


def _place(sample_id: str) -> bytes:
    return blake2b(sample_id.encode(), digest_size=16).digest()


def _in_turn(slices: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    for turn in zip_longest(*slices.values()):
        for name, sample_id in zip(slices, turn, strict=True):
            if sample_id is not None:
                yield name, sample_id


def _spread(
    own: list[tuple[str, str]], general: list[tuple[str, str]], gap: int
) -> Iterator[tuple[str, str]]:
    """Yield one of ``general`` after every ``gap`` of ``own``, then what is left of either."""
    num_general = 0
    for position, item in enumerate(own, start=1):
        yield item
        if position % gap == 0 and num_general < len(general):
            yield general[num_general]
            num_general += 1
    yield from general[num_general:]
