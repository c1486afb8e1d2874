"""A promoted version against the one before it, on what users send afterwards."""

from collections import deque
from collections.abc import Generator, Iterable, Mapping
from itertools import accumulate
from typing import Any

from collm.gate.watch import Watch
from collm.lora.state import AdapterState
from collm.pacing.quanta import Quantum
from collm.training.events import Regression
from collm.training.measuring import Measured, Meter
from collm.training.microbatch import pack
from collm.training.samples import TokenSample
from collm.types import WatchState

_MAX_PENDING = 256
"""Samples that wait to be measured; of a flood of feedback, the latest are enough."""


_MAX_KNOWN = 10_000
"""Ids that are remembered; what is told twice is told so within minutes."""


class FeedbackWatch:
    """Measures both versions on fresh feedback, a micro-batch at a time.

    An adapter's job has it while it learns, else a ``Vigil``: what was found goes along.

    Args:
        adapter: Whose versions they are.
        watch: Decides.
        active: The version that was promoted.
        previous: The version before it.
        meter: Measures.
        is_joint: Whether others, who watch the version too, decide by what all of them find.
    """

    def __init__(
        self,
        adapter: str,
        watch: Watch,
        active: AdapterState,
        previous: AdapterState,
        meter: Meter,
        *,
        is_joint: bool = False,
    ) -> None:
        self.is_joint = is_joint
        self._adapter = adapter
        self._watch = watch
        self._active = active
        self._previous = previous
        self._meter = meter
        self._pending: deque[TokenSample] = deque(maxlen=_MAX_PENDING)
        self._known: dict[str, None] = {}
        """Ids of what was given or removed lately; a job that begins is told once more of what came
        meanwhile."""

    @property
    def num_rows_due(self) -> int:
        """Rows to evaluate for the next micro-batch at most; 0 when nothing waits, or is proven."""
        if self._watch.has_regressed:
            return 0
        return 2 * sum(sample.num_rows for sample in self._next_samples())

    def numbers(self) -> Mapping[str, Any]:
        """Return what was found so far; JSON-ready."""
        return self._watch.numbers()

    def state(self) -> WatchState:
        """Return what was found so far, for those who decide together."""
        return self._watch.state()

    def add(self, samples: Iterable[TokenSample]) -> None:
        """Take in feedback that neither version was trained on, each sample once."""
        for sample in samples:
            if sample.sample_id not in self._known:
                self._know(sample.sample_id)
                self._pending.append(sample)

    def discard(self, sample_id: str) -> None:
        """Forget a sample that was removed, and one that is on its way still."""
        self._know(sample_id)
        self._keep_but({sample_id})

    def compare(self) -> Generator[Quantum, None, int]:
        """Measure both versions on the samples that wait longest and fit a micro-batch.

        If it is dropped half-way, they wait on.

        Returns:
            Rows that were evaluated.
        """
        batch = pack(self._next_samples())
        found: list[dict[str, Measured]] = []
        for state in (self._active, self._previous):
            operand = yield from self._meter.stage(state)
            found.append((yield from self._meter.measure(batch, operand)))
        active, previous = found
        for sample_id in batch.sample_ids:
            self._watch.add(active[sample_id].loss, previous[sample_id].loss)
        self._keep_but(set(batch.sample_ids))
        return 2 * batch.num_tokens

    def verdict(self) -> Regression | None:
        """Return what is to be told, if the promoted version is proven worse here alone."""
        if self.is_joint or not self._watch.has_regressed:
            return None
        return Regression(adapter=self._adapter, numbers=self._watch.numbers())

    def _know(self, sample_id: str) -> None:
        self._known[sample_id] = None
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def _keep_but(self, sample_ids: set[str]) -> None:
        kept = [sample for sample in self._pending if sample.sample_id not in sample_ids]
        self._pending.clear()
        self._pending.extend(kept)

    def _next_samples(self) -> list[TokenSample]:
        room = self._meter.max_tokens
        totals = accumulate(len(sample.token_ids) for sample in self._pending)
        return [
            sample
            for index, (sample, total) in enumerate(zip(self._pending, totals, strict=True))
            if index == 0 or total <= room
        ]
