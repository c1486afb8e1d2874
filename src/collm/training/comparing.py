"""Two adapters side by side on held-out samples, each measured once where that is enough."""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field

from collm.gate.config import GENERAL
from collm.gate.rotation import Rotation
from collm.gate.trial import PairedLoss, SliceLoss
from collm.lora.state import AdapterState
from collm.pacing.quanta import Quantum
from collm.training.corpus import Corpus
from collm.training.measuring import MeanLoss, Measured, Meter, mean_of, paired
from collm.training.microbatch import pack
from collm.training.passes import Operand
from collm.training.samples import TokenSample
from collm.types import VersionId

_MAX_KNOWN = 3
"""Versions whose losses are remembered: the base, what may replace it, and one more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A candidate to be compared with what it would replace."""

    number: int
    """The round's."""
    candidate: VersionId
    candidate_state: AdapterState
    active: VersionId | None
    active_state: AdapterState | None
    """``None`` for the bare base model."""
    max_samples: int


@dataclass(slots=True)
class Side:
    """An adapter to be measured, and what was found so far."""

    state: AdapterState
    measured: dict[str, Measured] = field(default_factory=dict)
    """By sample id."""
    operand: Operand | None = None
    """Where it can be measured, once it was staged."""


class Comparer:
    """Measures versions on one corpus.

    Args:
        corpus: Holds the held-out samples, which may change between two micro-batches.
        meter: Measures.
        rotate_share: Share of a comparison's samples that the next one replaces, in [0, 1].
    """

    def __init__(self, corpus: Corpus, meter: Meter, rotate_share: float) -> None:
        self._corpus = corpus
        self._meter = meter
        self._rotation = Rotation(rotate_share)
        self._order: list[str] = []
        self._known: dict[VersionId | None, dict[str, Measured]] = {}

    def side(self, version: VersionId | None, state: AdapterState) -> Side:
        """Return a version to be measured, with what is known of its losses."""
        known = self._known.pop(version, {})
        self._known[version] = known  # the latest last
        while len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return Side(state, known)

    def mean(self, version: VersionId | None) -> MeanLoss | None:
        """Return a version's mean loss, as far as it was measured."""
        samples = self._samples(self._known.get(version, {}))
        own = [self._known[version][s.sample_id] for s in samples if s.slice != GENERAL]
        return mean_of(own) if own else None

    def measure(self, side: Side, max_samples: int) -> Generator[Quantum, None, None]:
        """Measure one side on the samples that the next comparison begins with."""
        yield from self._each(side, side, max_samples, lambda: True)

    def compare(
        self,
        active: Side,
        candidate: Side,
        max_samples: int,
        *,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> Generator[Quantum, None, tuple[PairedLoss, ...]]:
        """Measure both sides on the same samples; ``goes_on`` is asked between micro-batches."""
        samples = yield from self._each(active, candidate, max_samples, goes_on)
        return tuple(
            paired(
                sample,
                active.measured[sample.sample_id],
                candidate.measured[sample.sample_id],
            )
            for sample in samples
        )

    def rotate(self, num_used: int) -> None:
        """Let the next comparison begin elsewhere, after one of ``num_used`` samples."""
        if self._order:
            self._rotation.advance(self._order[:num_used])
            self._order = []

    def num_affordable(self, num_rows: int) -> int:
        """Return how many of the next samples have so many rows together; at least one."""
        count = 0
        for sample in self._samples(self._ids()):
            num_rows -= sample.num_rows
            if num_rows < 0:
                break
            count += 1
        return max(1, count)

    def _each(
        self, first: Side, second: Side, max_samples: int, goes_on: Callable[[], bool]
    ) -> Generator[Quantum, None, list[TokenSample]]:
        measured: list[TokenSample] = []
        for batch in self._meter.batches(self._samples(self._ids()[:max_samples])):
            if not goes_on():
                break
            for side in (first, second):
                yield from self._add(side, batch)
            measured += batch
        return measured

    def _add(self, side: Side, samples: Sequence[TokenSample]) -> Generator[Quantum, None, None]:
        unknown = [sample for sample in samples if sample.sample_id not in side.measured]
        if unknown:
            side.operand = side.operand or (yield from self._meter.stage(side.state))
            side.measured |= yield from self._meter.measure(pack(unknown), side.operand)

    def _ids(self) -> list[str]:
        if not self._order:
            self._order = self._rotation.order(self._corpus.held_out_ids())
        return self._order

    def _samples(self, sample_ids: Iterable[str]) -> list[TokenSample]:
        """Return held-out samples by id, but for those removed by then."""
        found = (self._corpus.held_out(sample_id) for sample_id in sample_ids)
        return [sample for sample in found if sample is not None]


def means_of(pairs: Sequence[PairedLoss]) -> tuple[MeanLoss, MeanLoss] | tuple[None, None]:
    """Return the means of what was served and of the candidates; neither without pairs."""
    if not pairs:
        return None, None
    active = [Measured(pair.active, pair.active_is_exact) for pair in pairs]
    candidate = [Measured(pair.candidate, pair.candidate_is_exact) for pair in pairs]
    return mean_of(active), mean_of(candidate)


def is_surely_worse(pairs: Iterable[PairedLoss]) -> bool:
    """Return whether the candidates are worse on average, at 95 % confidence, or broken."""
    sums = SliceLoss(bound=0.0)
    for pair in pairs:
        if not math.isfinite(pair.candidate):
            return True
        if math.isfinite(pair.active):
            sums = sums.plus(pair.candidate - pair.active)
    return sums.is_surely_above
