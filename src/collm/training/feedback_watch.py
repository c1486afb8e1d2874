"""A promoted version against the one before it, on what users send afterwards."""

from collections import deque
from collections.abc import Generator, Iterable, Mapping
from itertools import accumulate
from typing import Any

from collm.gate.watch import Watch
from collm.lora.state import AdapterState
from collm.pacing.quanta import Quantum
from collm.training.measuring import Measured, Meter
from collm.training.microbatch import MicroBatch, pack
from collm.training.samples import TokenSample

_MAX_PENDING = 256
"""Samples that wait to be measured; of a flood of feedback, the latest are enough."""


class FeedbackWatch:
    """Measures both versions on fresh feedback, a micro-batch at a time.

    Args:
        watch: Decides.
        active: The version that was promoted.
        previous: The version before it.
        meter: Measures.
    """

    def __init__(
        self, watch: Watch, active: AdapterState, previous: AdapterState, meter: Meter
    ) -> None:
        self._watch = watch
        self._active = active
        self._previous = previous
        self._meter = meter
        self._pending: deque[TokenSample] = deque(maxlen=_MAX_PENDING)

    @property
    def has_regressed(self) -> bool:
        """Whether the promoted version is proven worse."""
        return self._watch.has_regressed

    @property
    def num_rows_due(self) -> int:
        """Rows to evaluate for the next micro-batch at most; 0 when nothing waits."""
        return 2 * sum(sample.num_rows for sample in self._next_samples())

    def numbers(self) -> Mapping[str, Any]:
        """Return what the decisions table records; JSON-ready."""
        return self._watch.numbers()

    def add(self, samples: Iterable[TokenSample]) -> None:
        """Take in feedback that neither version was trained on."""
        self._pending.extend(samples)

    def discard(self, sample_id: str) -> None:
        """Forget a sample that was removed."""
        kept = [sample for sample in self._pending if sample.sample_id != sample_id]
        self._pending.clear()
        self._pending.extend(kept)

    def take(self) -> MicroBatch:
        """Return the samples that wait longest and fit a micro-batch, at least one."""
        samples = self._next_samples()
        for _ in samples:
            self._pending.popleft()
        return pack(samples)

    def compare(self, batch: MicroBatch) -> Generator[Quantum, None, None]:
        """Measure both versions on ``batch``."""
        found: list[dict[str, Measured]] = []
        for state in (self._active, self._previous):
            operand = yield from self._meter.stage(state)
            found.append((yield from self._meter.measure(batch, operand)))
        active, previous = found
        for sample_id in batch.sample_ids:
            self._watch.add(active[sample_id].loss, previous[sample_id].loss)

    def _next_samples(self) -> list[TokenSample]:
        room = self._meter.max_tokens
        totals = accumulate(len(sample.token_ids) for sample in self._pending)
        return [
            sample
            for index, (sample, total) in enumerate(zip(self._pending, totals, strict=True))
            if index == 0 or total <= room
        ]
