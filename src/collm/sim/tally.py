"""Figures of a run, taken in one request at a time."""

from array import array
from collections import Counter
from collections.abc import Sequence

from collm.metrics.attainment import Attainment
from collm.metrics.latency import LatencySummary, summarize_latency
from collm.metrics.records import BLAMELESS, Objectives, RequestRecord


class Tally:
    """Counts records, so that a long run need not keep them.

    Args:
        objectives: What was promised.
    """

    def __init__(self, objectives: Objectives) -> None:
        self.objectives = objectives
        self._num_met = 0
        self._num_counted = 0
        self.outcomes: Counter[str] = Counter()
        self.quality_sum = 0.0
        """Q of the requests that met, summed."""
        self.score_sum = 0.0
        """Task scores of the requests that met, summed."""
        self.num_scored = 0
        """Requests that have a score, met or not."""
        self.num_output_tokens = 0
        self._ttft_s = array("d")
        self._tpot_s = array("d")

    def add(self, record: RequestRecord, quality: float, score: float | None) -> None:
        """Take in one request, with Q of what served it and its answer's score, if it has one."""
        self.outcomes[record.outcome] += 1
        if record.outcome not in BLAMELESS:
            self._num_counted += 1
        self.num_output_tokens += record.num_output_tokens
        ttft_s, tpot_s = record.ttft_s, record.tpot_s
        if ttft_s is not None:
            self._ttft_s.append(ttft_s)
        if tpot_s is not None:
            self._tpot_s.append(tpot_s)
        if score is not None:
            self.num_scored += 1
        if record.met(self.objectives):
            self._num_met += 1
            self.quality_sum += quality
            self.score_sum += score or 0.0

    @property
    def num_met(self) -> int:
        """Requests that met every objective."""
        return self._num_met

    @property
    def num_ended(self) -> int:
        """Requests that objectives say something about."""
        return self._num_counted

    @property
    def attainment(self) -> Attainment:
        """How many of the requests met every objective."""
        return Attainment(
            num_met=self._num_met,
            num_counted=self._num_counted,
            num_aborted=self.outcomes["aborted"],
        )

    def include(self, other: "Tally") -> None:
        """Add everything that another tally counted."""
        self._num_met += other._num_met
        self._num_counted += other._num_counted
        self.outcomes.update(other.outcomes)
        self.quality_sum += other.quality_sum
        self.score_sum += other.score_sum
        self.num_scored += other.num_scored
        self.num_output_tokens += other.num_output_tokens
        self._ttft_s.extend(other._ttft_s)
        self._tpot_s.extend(other._tpot_s)

    def ttft(self) -> LatencySummary:
        """Return percentiles of the times to the first token."""
        return summarize_latency(self._ttft_s)

    def tpot(self) -> LatencySummary:
        """Return percentiles of the mean times per later token."""
        return summarize_latency(self._tpot_s)


def merge(tallies: Sequence[Tally]) -> Tally:
    """Return the sum of tallies, at least one, of the same objectives."""
    total = Tally(tallies[0].objectives)
    for tally in tallies:
        total.include(tally)
    return total
