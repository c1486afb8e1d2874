"""The watch over a promoted version beside the jobs, or in the place of one."""

from collections.abc import Sequence

from collm.training.events import TrainingEvent
from collm.training.feedback_watch import FeedbackWatch
from collm.training.samples import TokenSample
from collm.training.snapshots import Program


class Vigil:
    """Goes on with a watch where no job does: it has ended, or rests, or learns in rounds.

    A job's watch is paid out of what it learns; here nothing is learned, so the watch goes by free
    time alone, and beside jobs by a small weight.

    Args:
        adapter: Whose version is watched.
        watch: What was found so far.
    """

    weight = 0.1
    """Of a share of training time, where jobs have 1: what comparing may take beside learning."""

    def __init__(self, adapter: str, watch: FeedbackWatch) -> None:
        self.name = adapter
        self.watch = watch
        self.events: list[TrainingEvent] = []

    def next_program(self) -> Program | None:
        """Return what to do next; ``None`` until feedback comes."""
        return self._compare() if self.watch.num_rows_due else None

    def add_samples(self, samples: Sequence[TokenSample]) -> None:
        """Measure both versions on these too."""
        self.watch.add(samples)

    def remove_sample(self, sample_id: str) -> None:
        """Measure nothing on a sample any more."""
        self.watch.discard(sample_id)

    def _compare(self) -> Program:
        yield from self.watch.compare()
        if (verdict := self.watch.verdict()) is not None:
            self.events.append(verdict)
