"""One adapter's training: what it does next, as programs of quanta.

A program is a generator that yields a quantum and performs it when resumed. A job hands out one
program at a time (a micro-batch, an optimizer step, an evaluation, a snapshot), so that several
jobs can share a trainer and a micro-batch can be dropped without a trace.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from collm.gate.config import GateConfig
from collm.gate.trial import Verdict
from collm.lora.state import AdapterState, initial_state
from collm.model.decoder import Decoder
from collm.pacing.quanta import Quantum, QuantumKind
from collm.training.config import JobConfig
from collm.training.corpus import Corpus
from collm.training.events import (
    JobFinished,
    ShadowReset,
    TrainingEvent,
    TrainingSnapshot,
)
from collm.training.examiner import Examiner
from collm.training.feedback_watch import FeedbackWatch
from collm.training.learning import Learning
from collm.training.measuring import Limits, Meter, QuantumSizes
from collm.training.passes import Activations
from collm.training.samples import TokenSample
from collm.training.snapshots import Program, Snapshots

_GIVE_WAY_AFTER = 4
"""Evaluations that may come due during a trial before it must be on course to go on."""


class Job:
    """An adapter's shadow, its optimizer, and its place in its data.

    Args:
        config: What to learn and how.
        decoder: The frozen weights.
        start: The state to train from: the version that is served, or a fresh adapter.
        corpus: What to learn from and to be judged by; the job's own from now on.
        gate: When a candidate is better.
        sizes: Bounds the quanta.
        max_quantum_s: Longest quantum wanted.
        activations: Whether to keep or recompute them.
    """

    def __init__(
        self,
        config: JobConfig,
        decoder: Decoder,
        start: AdapterState,
        corpus: Corpus,
        gate: GateConfig,
        sizes: QuantumSizes,
        max_quantum_s: float,
        activations: Activations,
    ) -> None:
        self.config = config
        self.events: list[TrainingEvent] = []
        self._corpus = corpus
        self._gate = gate
        limits = Limits(sizes, max_quantum_s, config.micro_batch_tokens)
        self._meter = Meter(decoder, config.adapter, limits)
        self._learning = Learning(
            config, decoder, start, corpus, limits, activations, num_epochs=config.num_epochs
        )
        self._state = self._learning.state
        self._stream = self._learning.stream
        self._examiner = Examiner(gate, corpus, self._meter, start)
        self._watch: FeedbackWatch | None = None
        self._new_base: tuple[AdapterState | None, AdapterState] | None = None
        """The version that the shadow comes from and the one that it is to be carried over to."""
        self._is_ahead = False
        """Whether the shadow may differ from what is served."""
        self._is_evaluation_due = True
        self._snapshots = Snapshots(self._copy)
        self._has_finished = False

    @property
    def name(self) -> str:
        """The adapter's name."""
        return self.config.adapter

    @property
    def num_steps(self) -> int:
        """Optimizer steps taken."""
        return self._state.num_steps

    def size_steps(self, tokens: int | None) -> None:
        """Accumulate this many sample tokens a step from now on; ``None``: as configured."""
        self._learning.size_steps(tokens)

    def next_program(self) -> Program | None:
        """Return what to do next; ``None`` when there is nothing to do until samples come."""
        if self._new_base is not None:
            return self._rebase(*self._new_base)
        if self._learning.is_step_due:
            return self._step()
        if self._learning.has_gradient:
            return self._learn()
        if self._can_evaluate():
            return self._evaluate()
        if self._watch is not None and self._can_compare(self._watch):
            return self._compare(self._watch)
        if self._is_over() or not self._stream.has_next:
            return None
        return self._learn()

    def took(self, kind: QuantumKind, seconds: float) -> None:
        """Note how long a quantum of this job took."""
        self._examiner.took(kind, seconds)

    def snapshot_program(self) -> Program | None:
        """Return the snapshot that was asked for, if it can be taken; not amid a step."""
        is_possible = self._snapshots.is_due and self._new_base is None
        return self._snapshots.program() if is_possible else None

    def request_snapshot(self) -> None:
        """Ask for a snapshot as of the last step, unless nothing was learned since the last."""
        self._snapshots.request(self.num_steps)

    def snapshot_now(self) -> list[TrainingEvent]:
        """Take a snapshot at once, unless nothing was learned since the last.

        Call it between two programs.
        """
        self.request_snapshot()
        for _ in self.snapshot_program() or ():
            pass
        events, self.events = self.events, []
        return events

    def add_samples(self, samples: Sequence[TokenSample]) -> None:
        """Learn from these too, and first; a version under watch is measured on them."""
        self._corpus.add(samples)
        if self._watch is not None:
            self._watch.add(samples)

    def remove_sample(self, sample_id: str) -> bool:
        """Never use a sample again, on whichever side it is; return whether it was there.

        A micro-batch that was packed before goes on.
        """
        if self._watch is not None:
            self._watch.discard(sample_id)
        return self._corpus.remove(sample_id)

    def drop_gradient(self) -> None:
        """Forget the micro-batches since the last step, a half-finished one included.

        Their samples come again.
        """
        self._learning.drop_gradient()

    def take_watch(self, watch: FeedbackWatch) -> None:
        """Watch a promoted version from now on, as far as its comparing can be afforded."""
        self._watch = watch

    def give_watch(self) -> FeedbackWatch | None:
        """Watch nothing any more; return what was found until now, if there was a watch."""
        watch, self._watch = self._watch, None
        return watch

    def rebase(self, old: AdapterState | None, new: AdapterState) -> None:
        """Carry what was learned since ``old`` over to ``new``, which is served from now on.

        That is the job's next program. The factors change their basis, so the optimizer's moments
        start anew.
        """
        self.drop_gradient()
        self._new_base = (old if self._new_base is None else self._new_base[0], new)

    def reset(self, state: AdapterState | None) -> None:
        """Continue from ``state``, served from now on, and forget what was learned beyond it.

        ``None`` is a fresh adapter, beside the bare base model.
        """
        state = state or self._fresh()
        self.drop_gradient()
        self._new_base = None
        self._state.restart(state)
        self._examiner.serve(state)
        self._moved(is_ahead=False)

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> None:
        """Take over a snapshot of this job.

        What is served may be newer than the snapshot, so it is measured before any candidate.

        Raises:
            ConfigError: The snapshot was taken with another rank or alpha.
        """
        self._learning.restore(tensors, meta)
        self._moved(is_ahead=True)
        self._snapshots.saved(self.num_steps)

    def restore_place(self, meta: Mapping[str, str]) -> None:
        """Take over how far a snapshot of this job was, but not what it had learned."""
        self._learning.restore_place(meta)
        self._moved(is_ahead=False)

    def _fresh(self) -> AdapterState:
        """Return an adapter that changes nothing: what the bare base model is as a version."""
        return initial_state(self._state.layout, self.config.seed)

    def _is_over(self) -> bool:
        """Whether the job has taken all its steps."""
        total_steps = self.config.total_steps
        return self._stream.has_ended or (total_steps is not None and self.num_steps >= total_steps)

    def _done_share(self) -> float | None:
        """Return how much of the job is done, by whichever of its ends is nearer."""
        total_steps = self.config.total_steps
        shares = [
            share
            for share in (
                self._stream.done_share,
                None if total_steps is None else min(1.0, self.num_steps / total_steps),
            )
            if share is not None
        ]
        return max(shares, default=None)

    def _can_evaluate(self) -> bool:
        if self._is_over() and not self._has_finished:
            return True  # The last evaluation is owed, whatever it costs.
        if self._examiner.has_open_trial:
            return self._examiner.can_go_on()
        return self._is_evaluation_due and self._examiner.can_begin(has_candidate=self._is_ahead)

    def _can_compare(self, watch: FeedbackWatch) -> bool:
        num_rows = watch.num_rows_due
        return num_rows > 0 and self._examiner.affords(num_rows)

    def _moved(self, *, is_ahead: bool) -> None:
        """Note that the shadow is now elsewhere than its training led it."""
        self._is_ahead = is_ahead
        self._is_evaluation_due = True
        self._snapshots.outdated()

    def _rebase(self, old: AdapterState | None, new: AdapterState) -> Program:
        """Carry the shadow over to ``new``."""
        yield from self._state.carry_over(old, new)
        self._new_base = None
        self._examiner.serve(new)
        self._moved(is_ahead=True)
        self._snapshots.is_due = True  # what was carried over is on disk nowhere else

    def _learn(self) -> Program:
        """Run one micro-batch forward and backward into the gradient."""
        num_rows = yield from self._learning.learn()
        self._examiner.earn(num_rows)

    def _step(self) -> Program:
        """Apply the accumulated gradient."""
        report = yield from self._learning.step()
        self.events.append(replace(report, done_share=self._done_share()))
        self._is_ahead = True
        if self.num_steps % self.config.evaluate_every == 0:
            self._is_evaluation_due = True
            self._give_way()
        if report.was_skipped and not self._state.is_finite:
            self._start_over("its parameters are no longer finite")

    def _evaluate(self) -> Program:
        """Compare the shadow as it is, or was, with what is served; hand it out if it is better."""
        was_open = self._examiner.has_open_trial
        if not was_open:
            yield from self._look_at_shadow()
        if self._examiner.has_open_trial:
            yield from self._go_on_with_trial()
        # The trial of an earlier shadow does not make up for the last one's.
        if self._is_over() and not self._has_finished and not was_open:
            self._has_finished = True
            self.events.append(JobFinished(adapter=self.name, step=self.num_steps))

    def _look_at_shadow(self) -> Program:
        """Begin a trial of a copy of the shadow, or measure what is served if it is the same."""
        yield Quantum(QuantumKind.STAGE, self._state.layout.num_parameters, 0, self.name)
        self._is_evaluation_due = False
        if not self._state.is_finite:
            self._start_over("its parameters are no longer finite")
        elif self._is_ahead and self._corpus.num_held_out:
            yield Quantum(QuantumKind.STAGE, self._state.layout.num_parameters, 1, self.name)
            self._examiner.begin(self._state.shadow.state(), self.num_steps)
        elif self._corpus.num_held_out:
            found = yield from self._examiner.baseline()
            self.events.append(found.report(self.name, self.num_steps))

    def _go_on_with_trial(self) -> Program:
        """Read on in the open trial, and act on what it found if it is over."""
        found = yield from self._examiner.go_on(is_last=self._is_over())
        if found is None:
            return
        self.events.append(found.told(self.name))
        verdict = found.report.verdict
        if verdict is Verdict.BETTER:
            self._is_ahead = self.num_steps > found.step
        if verdict is Verdict.NOT_FINITE or self._examiner.is_hopeless:
            yield Quantum(QuantumKind.STAGE, self._state.layout.num_parameters, 1, self.name)
            self._start_over(
                "its loss on a held-out sample is not finite"
                if verdict is Verdict.NOT_FINITE
                else f"{self._gate.max_worse} evaluations in a row proved it worse than what is "
                "served"
            )

    def _give_way(self) -> None:
        """End a trial that the shadow has left behind, unless it is on course to be decided."""
        num_steps_behind = _GIVE_WAY_AFTER * self.config.evaluate_every
        found = self._examiner.give_way(self.num_steps - num_steps_behind)
        if found is not None:
            self.events.append(found.told(self.name))

    def _start_over(self, reason: str) -> None:
        """Throw the shadow away and go on from what is served."""
        self._state.restart(self._examiner.served)
        self._examiner.begin_anew()
        self._is_ahead = False
        self._snapshots.outdated()
        self.events.append(ShadowReset(adapter=self.name, step=self.num_steps, reason=reason))

    def _compare(self, watch: FeedbackWatch) -> Program:
        """Measure the promoted version and the one before it on fresh feedback."""
        num_rows = yield from watch.compare()
        self._examiner.spend(num_rows)
        if (verdict := watch.verdict()) is not None:
            self.events.append(verdict)

    def _copy(self) -> Generator[Quantum, None, int]:
        """Copy the state as of the last step, and where its data goes on from there."""
        tensors, meta = yield from self._learning.copy()
        self.events.append(TrainingSnapshot(adapter=self.name, tensors=tensors, meta=meta))
        return self.num_steps
