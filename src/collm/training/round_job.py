"""The training of an adapter that several replicas learn together.

It learns when a round asks for it, and only as much; in between it compares candidates with what is
served, and rests. What it learned leaves as events; what is served comes from the coordinator.
"""

from collections.abc import Generator, Mapping, Sequence

from torch import Tensor

from collm.gate.config import GENERAL, GateConfig
from collm.gate.exact_match import ExactMatch
from collm.gate.trial import PairedLoss
from collm.lora.state import AdapterState
from collm.model.decoder import Decoder
from collm.pacing.quanta import Quantum, QuantumKind
from collm.training.base_version import BaseVersion, fresh_state
from collm.training.comparing import Comparer, Comparison, Side, is_surely_worse, means_of
from collm.training.config import JobConfig
from collm.training.corpus import Corpus
from collm.training.events import (
    Compared,
    RoundFailed,
    RoundTrained,
    ShadowReset,
    TrainingEvent,
    TrainingSnapshot,
)
from collm.training.learning import Learning
from collm.training.measuring import Limits, Meter
from collm.training.passes import Activations
from collm.training.round_progress import Gained, OpenRound
from collm.training.samples import TokenSample
from collm.training.snapshots import Program, Snapshots
from collm.types import VersionId

_BASELINE_SAMPLES = 24
_UNITS_PER_LEARNED_ROW = 3
"""Forward, and a backward of about twice that."""
_BASE = "base"


class RoundJob:
    """An adapter's shadow between rounds: trained from a base, reported, carried to the next base.

    Args:
        config: What to learn and how; its ends (``total_steps``, ``num_epochs``) do not count.
        decoder: The frozen weights.
        base: The version to train from.
        corpus: What to learn from and to compare on; the job's own from now on.
        gate: ``rotate_share`` and ``evaluation_share`` are used.
        limits: Bounds micro-batches and quanta.
        activations: Whether to keep or recompute them.
        member: This replica's name, as versions list whose updates are in them.
    """

    def __init__(
        self,
        config: JobConfig,
        decoder: Decoder,
        base: BaseVersion,
        corpus: Corpus,
        gate: GateConfig,
        limits: Limits,
        activations: Activations,
        member: str,
    ) -> None:
        self.config = config
        self.events: list[TrainingEvent] = []
        self._corpus = corpus
        self._gate = gate
        self._member = member
        self._learning = Learning(
            config, decoder, base.state, corpus, limits, activations, num_epochs=None
        )
        self._state = self._learning.state
        self._comparer = Comparer(corpus, Meter(decoder, config.adapter, limits), gate.rotate_share)
        self._base = base
        self._new_base: BaseVersion | None = None
        self._gained = Gained()
        self._round: OpenRound | None = None
        self._comparison: Comparison | None = None
        self._is_baseline_due = True
        self._snapshots = Snapshots(self._copy)

    @property
    def name(self) -> str:
        """The adapter's name."""
        return self.config.adapter

    @property
    def num_steps(self) -> int:
        """Optimizer steps taken."""
        return self._state.num_steps

    @property
    def has_samples(self) -> bool:
        """Whether there is anything to learn from."""
        return self._corpus.num_training > 0

    @property
    def has_held_out(self) -> bool:
        """Whether there is anything to compare on."""
        return self._corpus.num_held_out > 0

    # What the trainer does

    def size_steps(self, tokens: int | None) -> None:
        """Accumulate this many sample tokens a step from now on; ``None``: as configured."""
        self._learning.size_steps(tokens)

    def next_program(self) -> Program | None:
        """Return what to do next; ``None`` to rest until somebody asks."""
        if self._new_base is not None:
            return self._rebase(self._new_base)
        if self._comparison is not None:
            return self._compare(self._comparison)
        if self._round is not None:
            return self._next_of_round(self._round)
        if self._is_baseline_due and self.has_held_out:
            return self._measure_base()
        return None

    def snapshot_program(self) -> Program | None:
        """Return the snapshot that was asked for, if it can be taken; not amid a step."""
        is_possible = self._snapshots.is_due and self._new_base is None
        return self._snapshots.program() if is_possible else None

    def request_snapshot(self) -> None:
        """Ask for a snapshot as of the last step, unless nothing changed since the last."""
        self._snapshots.request(self.num_steps)

    def snapshot_now(self) -> list[TrainingEvent]:
        """Take a snapshot at once, unless nothing changed since the last.

        Call it between two programs.
        """
        self.request_snapshot()
        for _ in self.snapshot_program() or ():
            pass
        return self._take_events()

    def add_samples(self, samples: Sequence[TokenSample]) -> None:
        """Learn from these too, and first."""
        self._corpus.add(samples)

    def remove_sample(self, sample_id: str) -> bool:
        """Never use a sample again, on whichever side it is; return whether it was there."""
        return self._corpus.remove(sample_id)

    def drop_gradient(self) -> None:
        """Forget the micro-batches since the last step; their samples come again."""
        self._learning.drop_gradient()

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> None:
        """Take over a snapshot of this job; what was learned upon another base stays behind.

        Raises:
            ConfigError: The snapshot was taken with another rank or alpha.
        """
        self._learning.restore(tensors, meta)
        if meta.get(_BASE) == _text(self._base.version):
            self._gained = Gained.from_meta(meta, self._state.shadow.state())
        else:
            self._state.restart(self._base.state)
        self._snapshots.saved(self.num_steps)

    def restore_place(self, meta: Mapping[str, str]) -> None:
        """Take over how far a snapshot of this job was, but not what it had learned."""
        self._learning.restore_place(meta)
        self._snapshots.outdated()

    # What rounds ask for; each returns what is to be told at once

    def begin_round(
        self, number: int, max_tokens: int, base: BaseVersion | None
    ) -> list[TrainingEvent]:
        """Train for a round, from ``base`` or a fresh adapter; a round before it reports.

        What was learned upon the same base, and is in no version yet, is gone on from.
        """
        self._cut()
        self._move_to(base or self._fresh())
        if self._gained.is_worse and self._new_base is None:
            self._start_over("it was proven worse than what is served")
        self._round = self._gained.begin(number, max_tokens)
        return self._take_events()

    def finish_round(self) -> None:
        """Report what there is as soon as the step under way is done."""
        if self._round is not None:
            self._round.is_hurried = True

    def cut_round(self) -> list[TrainingEvent]:
        """Report what there is as of the last step, now."""
        self._cut()
        return self._take_events()

    def compare(self, comparison: Comparison) -> None:
        """Compare a candidate, in place of one that still waits."""
        self._comparison = comparison

    def adopt(self, base: BaseVersion) -> list[TrainingEvent]:
        """Go on from ``base``, served from now on, with what was learned and is not in it."""
        self._move_to(base)
        return self._take_events()

    def revert(self, base: BaseVersion | None) -> list[TrainingEvent]:
        """Go on from ``base``, served from now on, and forget what was learned beyond it.

        ``None`` is a fresh adapter, beside the bare base model.
        """
        self._fail_round("what it was trained from was taken back")
        self.drop_gradient()
        self._base, self._new_base, self._comparison = base or self._fresh(), None, None
        self._restart()
        return self._take_events()

    # Programs

    def _next_of_round(self, open_round: OpenRound) -> Program:
        num_left = open_round.num_left - self._learning.num_pending_tokens
        stream = self._learning.stream
        is_over = open_round.is_hurried or not (stream.has_next and stream.fits(num_left))
        if self._learning.has_gradient and (is_over or self._learning.is_step_due):
            return self._step(open_round)
        if is_over:
            return self._report(open_round)
        return self._learn(num_left)

    def _learn(self, num_left: int) -> Program:
        yield from self._learning.learn(num_left)

    def _step(self, open_round: OpenRound) -> Program:
        report = yield from self._learning.step()
        self.events.append(report)
        self._gained.add(report, open_round)
        if report.was_skipped and not self._state.is_finite:
            self._start_over("its parameters are no longer finite")

    def _report(self, open_round: OpenRound) -> Program:
        """Copy the shadow, measure it beside its base while there is time, and hand it out."""
        yield self._stage_quantum(0)
        if not self._state.is_finite:
            self._fail_round("its parameters are not finite")
            self._start_over("its parameters are not finite")
            return
        state = self._state.shadow.state()
        pairs: tuple[PairedLoss, ...] = ()
        if self.has_held_out and self._gained.counts.num_tokens and not open_round.is_hurried:
            base = self._comparer.side(self._base.version, self._base.state)
            pairs = yield from self._comparer.compare(
                base,
                Side(state),
                self._num_to_measure(open_round),
                goes_on=lambda: not open_round.is_hurried,
            )
        self._hand_out(open_round, state, pairs)

    def _num_to_measure(self, open_round: OpenRound) -> int:
        """Return the samples whose measuring takes half of what evaluation may, for both sides."""
        share = self._gate.evaluation_share / 2
        num_rows = share * _UNITS_PER_LEARNED_ROW * open_round.num_tokens / 2
        return self._comparer.num_affordable(int(num_rows))

    def _compare(self, comparison: Comparison) -> Program:
        yield self._stage_quantum(0)  # a program has at least one
        active_state = comparison.active_state or fresh_state(self.name, self._state.layout)
        pairs = yield from self._comparer.compare(
            self._comparer.side(comparison.active, active_state),
            self._comparer.side(comparison.candidate, comparison.candidate_state),
            comparison.max_samples,
        )
        self._comparer.rotate(len(pairs))
        if self._comparison is comparison:
            self._comparison = None
        self.events.append(Compared(adapter=self.name, number=comparison.number, pairs=pairs))

    def _measure_base(self) -> Program:
        """Measure what is served, if it is not known from comparisons."""
        yield self._stage_quantum(0)
        if not self._is_base_known():
            side = self._comparer.side(self._base.version, self._base.state)
            yield from self._comparer.measure(side, _BASELINE_SAMPLES)
        self._tell_baseline()

    def _is_base_known(self) -> bool:
        known = self._comparer.mean(self._base.version)
        enough = min(_BASELINE_SAMPLES, self._corpus.num_held_out)
        return known is not None and known.num_samples >= enough

    def _tell_baseline(self) -> None:
        self._is_baseline_due = False
        if (known := self._comparer.mean(self._base.version)) is not None:
            self.events.append(known.report(self.name, self.num_steps))

    def _rebase(self, new: BaseVersion) -> Program:
        """Carry over to ``new`` what was learned and is not in it."""
        is_in = self._member in new.members and self._gained.reported is not None
        old = (is_in and self._gained.reported) or self._base.state
        yield self._stage_quantum(0)
        kept = self._gained.unreported if is_in else self._gained.counts
        if new.keeps_basis and new.state.layout == old.layout == self._state.layout:
            self._state.shift(old, new.state)
        elif kept.num_tokens:
            yield from self._state.carry_over(old, new.state)
        else:
            self._state.restart(new.state)
        if is_in:
            self._gained.keep_unreported()
        else:
            self._gained.reported = None
        self._base, self._new_base = new, None
        self._is_baseline_due = True
        if self._is_base_known():  # from when it was a candidate
            self._tell_baseline()
        self._snapshots.outdated()

    def _copy(self) -> Generator[Quantum, None, int]:
        tensors, meta = yield from self._learning.copy()
        meta |= self._gained.to_meta() | {_BASE: _text(self._base.version)}
        self.events.append(TrainingSnapshot(adapter=self.name, tensors=tensors, meta=meta))
        return self.num_steps

    # Changes at once

    def _move_to(self, base: BaseVersion) -> None:
        current = self._new_base or self._base
        if base.version == current.version:
            return
        self._cut()
        self.drop_gradient()
        self._new_base = base

    def _cut(self) -> None:
        if self._round is not None:
            self.drop_gradient()
            self._hand_out(self._round, self._state.shadow.state(), ())

    def _hand_out(
        self, open_round: OpenRound, state: AdapterState, pairs: Sequence[PairedLoss]
    ) -> None:
        """End a round with what there is."""
        own = [pair for pair in pairs if pair.slice != GENERAL]
        before, after = means_of(own)
        self.events.append(
            RoundTrained(
                adapter=self.name,
                number=open_round.number,
                base=self._base.version,
                state=state,
                num_examples=self._gained.counts.num_examples,
                num_tokens=self._gained.counts.num_tokens,
                loss_before=before.finite if before else None,
                loss_after=after.finite if after else None,
                error_before=before.error if before else None,
                error_after=after.error if after else None,
                num_measured=len(own),
                exact_before=before.exact if before else ExactMatch(),
                exact_after=after.exact if after else ExactMatch(),
                is_complete=self._is_used_up(open_round),
                gradient=self._gained.unreported.gradient,
            )
        )
        self._gained.note_report(state)
        self._gained.is_worse = is_surely_worse(own)
        self._round = None
        self._snapshots.outdated()

    def _is_used_up(self, open_round: OpenRound) -> bool:
        stream = self._learning.stream
        return stream.has_next and not stream.fits(open_round.num_left)

    def _fail_round(self, reason: str) -> None:
        if self._round is not None:
            number, self._round = self._round.number, None
            self.events.append(RoundFailed(adapter=self.name, number=number, reason=reason))

    def _start_over(self, reason: str) -> None:
        """Throw away what was learned since the base."""
        self._restart()
        self.events.append(ShadowReset(adapter=self.name, step=self.num_steps, reason=reason))

    def _restart(self) -> None:
        self._state.restart(self._base.state)
        self._gained = self._gained.latest_only()
        self._is_baseline_due = True
        self._snapshots.outdated()

    def _fresh(self) -> BaseVersion:
        return BaseVersion(version=None, state=fresh_state(self.name, self._state.layout))

    def _take_events(self) -> list[TrainingEvent]:
        events, self.events = self.events, []
        return events

    def _stage_quantum(self, index: int) -> Quantum:
        return Quantum(QuantumKind.STAGE, self._state.layout.num_parameters, index, self.name)


def _text(version: VersionId | None) -> str:
    return version or ""
