"""Trials of a shadow against what is served, on held-out samples, within an allowance."""

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace

from collm.gate.allowance import Allowance
from collm.gate.config import GENERAL, GateConfig
from collm.gate.rotation import Rotation
from collm.gate.trial import Trial, Verdict
from collm.lora.state import AdapterState
from collm.pacing.quanta import COMPARING, LEARNING, Quantum, QuantumKind
from collm.training.corpus import Corpus
from collm.training.measuring import MeanLoss, Measured, Meter, mean_of
from collm.training.microbatch import MicroBatch, num_packed_rows, pack
from collm.training.open_trial import FinishedTrial, OpenTrial
from collm.training.passes import Operand
from collm.training.samples import TokenSample

_BASELINE_TRIALS = 2
"""What is served is measured on as many samples as this many shortest trials need: enough for a
first figure, and soon over."""

_PADDING = 8
"""One row in so many is allowed for filling micro-batches up."""


class Examiner:
    """Owns what is known of the served version's losses, and what comparing may cost.

    Args:
        config: The gate's.
        corpus: Holds the held-out samples, which may change between two micro-batches.
        meter: Measures.
        served: What candidates have to beat.
    """

    def __init__(
        self, config: GateConfig, corpus: Corpus, meter: Meter, served: AdapterState
    ) -> None:
        self._config = config
        self._corpus = corpus
        self._meter = meter
        self._served = served
        self._rotation = Rotation(config.rotate_share)
        self._order: list[str] = []
        """Held-out samples as the next trial reads them; empty until somebody asks."""
        self._active: dict[str, Measured] = {}
        """What is served on each held-out sample measured so far."""
        self._open: OpenTrial | None = None
        self._num_worse = 0
        # Twice: for the served version alone, and for the first candidate.
        grant = 2 * num_packed_rows(self._wanted(_BASELINE_TRIALS * config.min_samples))
        self._allowance = Allowance(config.evaluation_share, grant)

    @property
    def served(self) -> AdapterState:
        """What candidates have to beat."""
        return self._served

    @property
    def is_hopeless(self) -> bool:
        """Whether candidates were proven worse as often in a row as is put up with."""
        return self._num_worse >= self._config.max_worse

    def serve(self, state: AdapterState) -> None:
        """Note that another version is served from now on; nothing is known of its losses."""
        self._served = state
        self._active = {}
        self.begin_anew()

    def begin_anew(self) -> None:
        """Note that the next candidate has nothing to do with those before it."""
        self._open = None
        self._num_worse = 0

    def earn(self, num_rows: int) -> None:
        """Note rows that were learned from; comparing may cost a share of that."""
        self._allowance.earn(num_rows)

    def spend(self, num_rows: int) -> None:
        """Note rows that were evaluated."""
        self._allowance.spend(num_rows)

    def took(self, kind: QuantumKind, seconds: float) -> None:
        """Note what a quantum of this kind took: the allowance is one of time."""
        if kind in COMPARING:
            self._allowance.took(evaluated_s=seconds)
        elif kind in LEARNING:
            self._allowance.took(learned_s=seconds)

    def affords(self, num_rows: int) -> bool:
        """Return whether so many rows may be evaluated now."""
        return num_rows <= self._allowance.affordable_rows

    @property
    def has_open_trial(self) -> bool:
        """Whether a candidate is under comparison."""
        return self._open is not None

    def can_begin(self, *, has_candidate: bool) -> bool:
        """Return whether there are held-out samples, and as many are affordable as decide at best.

        Args:
            has_candidate: Whether a trial is to begin, or what is served measured by itself.
        """
        samples = self._wanted(max(self._config.min_samples, self._num_of_each()))
        if has_candidate:
            return bool(samples) and self.affords(self._cost(samples))
        return bool(samples) and self.affords(num_packed_rows(self._unmeasured(samples)))

    def can_go_on(self) -> bool:
        """Return whether the open trial's next micro-batch is affordable, or none is left."""
        assert self._open is not None, "a trial was begun"
        samples = next(self._meter.batches(self._remaining(self._open)), ())
        return self.affords(self._cost(samples))

    def baseline(self) -> Generator[Quantum, None, MeanLoss]:
        """Measure what is served on the samples that the next trial begins with.

        Losses are of the adapter's own samples, infinite if broken; general text is counted too.
        """
        served: Operand | None = None
        wanted = self._wanted(_BASELINE_TRIALS * self._config.min_samples)
        for samples in self._meter.batches(self._samples([sample.sample_id for sample in wanted])):
            batch = self._unknown(samples)
            if batch is None:
                continue
            if not self.affords(batch.num_tokens):
                break
            served = served or (yield from self._meter.stage(self._served))
            self._active |= yield from self._measure(batch, served)
        own = [
            found
            for sample_id, found in self._active.items()
            if (sample := self._corpus.held_out(sample_id)) and sample.slice != GENERAL
        ]
        mean = mean_of(own) if own else MeanLoss(math.inf, 0)
        return replace(mean, num_samples=len(self._active))

    def begin(self, candidate: AdapterState, step: int) -> None:
        """Begin to compare a candidate, a copy that nobody changes, with what is served.

        Args:
            candidate: Finite throughout.
            step: Optimizer steps that it took.
        """
        order, self._order = self._next_ids(), []
        self._open = OpenTrial(candidate, step, Trial(self._config, self._sizes()), order)

    def go_on(self, *, is_last: bool) -> Generator[Quantum, None, FinishedTrial | None]:
        """Read on in the open trial; return what it found, or ``None`` when it must wait.

        One micro-batch is read in any case, others while they are affordable. What was found so far
        is kept: the betting test may look as often as it likes, and stop and go on whenever.

        Args:
            is_last: Whether no other trial follows; then it may cost more than is affordable.
        """
        trial = self._open
        assert trial is not None, "a trial was begun"
        is_decided, is_first = False, True
        for samples in self._meter.batches(self._remaining(trial)):
            # What is proven, and waits for its slices alone, may go on and run into debt.
            may_cost = is_first or is_last or trial.trial.is_proven
            if not (may_cost or self.affords(self._cost(samples))):
                return None
            yield from self._compare(trial, samples)
            is_first, is_decided = False, self._is_decided(trial, samples)
            if is_decided:
                break
        self._open = None
        self._rotation.advance(trial.measured)
        report = trial.trial.report()
        self._num_worse = self._num_worse + 1 if report.verdict is Verdict.WORSE else 0
        if report.verdict is Verdict.BETTER:
            self._hand_out(trial)
        return FinishedTrial(trial.candidate, trial.step, report)

    def give_way(self, step: int) -> FinishedTrial | None:
        """End the open trial if its candidate is of ``step`` or older and not on course.

        Ending it costs nothing of what the next one may err: each candidate's evidence begins with
        a capital of 1, and one that is given up is not served.
        """
        trial = self._open
        if trial is None or trial.step > step or trial.trial.is_on_course:
            return None
        report = trial.trial.report()
        if report.verdict is not Verdict.NOT_SHOWN:  # it is decided, and says so when it goes on
            return None
        self._open = None
        self._rotation.advance(trial.measured)
        self._num_worse = 0
        report = replace(report, verdict=Verdict.OVERTAKEN)
        return FinishedTrial(trial.candidate, trial.step, report)

    def _hand_out(self, trial: OpenTrial) -> None:
        """Note that a candidate is to be served: its losses are known."""
        self._served = trial.candidate
        self._active = trial.measured
        self.begin_anew()

    def _compare(
        self, trial: OpenTrial, samples: Sequence[TokenSample]
    ) -> Generator[Quantum, None, None]:
        """Measure both sides on one micro-batch; what is served only where it is not known."""
        unknown = self._unknown(samples)
        if unknown is not None:
            trial.served = trial.served or (yield from self._meter.stage(self._served))
            self._active |= yield from self._measure(unknown, trial.served)
        trial.operand = trial.operand or (yield from self._meter.stage(trial.candidate))
        trial.measured |= yield from self._measure(pack(samples), trial.operand)

    def _is_decided(self, trial: OpenTrial, samples: Sequence[TokenSample]) -> bool:
        for sample in samples:
            trial.add(sample, self._active[sample.sample_id])
            if trial.trial.verdict(is_exhausted=False) is not None:
                return True
        return False

    def _cost(self, samples: Sequence[TokenSample]) -> int:
        """Return about the rows that comparing on these samples takes."""
        num_rows = num_packed_rows(self._unmeasured(samples)) + num_packed_rows(samples)
        return num_rows + num_rows // _PADDING

    def _measure(
        self, batch: MicroBatch, operand: Operand
    ) -> Generator[Quantum, None, dict[str, Measured]]:
        self.spend(batch.num_tokens)
        return (yield from self._meter.measure(batch, operand))

    def _unknown(self, samples: Sequence[TokenSample]) -> MicroBatch | None:
        """Return those samples on which what is served was not measured yet."""
        unknown = self._unmeasured(samples)
        return pack(unknown) if unknown else None

    def _unmeasured(self, samples: Iterable[TokenSample]) -> list[TokenSample]:
        return [sample for sample in samples if sample.sample_id not in self._active]

    def _wanted(self, max_own: int) -> list[TokenSample]:
        """Return the next trial's samples up to so many of the adapter's own."""
        wanted: list[TokenSample] = []
        num_own = 0
        for sample in self._samples(self._next_ids()):
            wanted.append(sample)
            num_own += sample.slice != GENERAL
            if num_own == max_own:
                break
        if not wanted:
            self._order = []  # All of it was removed; others may have come.
        return wanted

    def _num_of_each(self) -> int:
        """Return the own samples that a trial reads until it saw enough of each slice."""
        wanted = -(-self._config.min_slice_samples // 2)
        return sum(min(wanted, size) for name, size in self._sizes().items() if name != GENERAL)

    def _sizes(self) -> dict[str, int]:
        """Return how many held-out samples each slice has."""
        return {name: len(ids) for name, ids in self._corpus.held_out_ids().items()}

    def _remaining(self, trial: OpenTrial) -> Iterator[TokenSample]:
        """Yield what the trial may still read, as long as it can matter."""
        samples = self._samples(trial.remaining_ids)
        return (sample for sample in samples if trial.trial.wants(sample.slice))

    def _samples(self, sample_ids: Iterable[str]) -> Iterator[TokenSample]:
        """Yield held-out samples by id, but for those removed by then."""
        found = (self._corpus.held_out(sample_id) for sample_id in sample_ids)
        return (sample for sample in found if sample is not None)

    def _next_ids(self) -> list[str]:
        if not self._order:
            self._order = self._rotation.order(self._corpus.held_out_ids())
        return self._order
