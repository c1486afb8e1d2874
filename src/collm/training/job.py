"""One adapter's training: what it does next, as programs of quanta.

A program is a generator that yields a quantum and performs it when resumed. A job hands out one
program at a time (a micro-batch, an optimizer step, an evaluation, a snapshot), so that several
jobs can share a trainer and a micro-batch can be dropped without a trace.
"""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from collm.errors import ConfigError
from collm.lora.algebra import Combination, combine, rebase_terms
from collm.lora.bank import AdapterBank
from collm.lora.layout import LoraLayout
from collm.lora.shadow import Shadow
from collm.lora.state import AdapterState
from collm.model.decoder import Decoder
from collm.model.layers import Target
from collm.pacing.quanta import Quantum, QuantumKind, optimizer_quanta
from collm.training.config import JobConfig
from collm.training.events import HeldOutReport, TrainingEvent, TrainingSnapshot, TrainReport
from collm.training.microbatch import MicroBatch, pack
from collm.training.optimizer import FlatAdamW, clip_factor, learning_rate_share
from collm.training.passes import Activations, Operand, Pass
from collm.training.samples import TokenSample
from collm.training.stream import Cursor, SampleStream

_OPTIMIZER_PARAMETERS = 1_000_000
"""About what one optimizer quantum updates."""
_MAX_LOSS_ROWS = 256
_MIN_LOSS_ROWS = 8

Program = Iterator[Quantum]
Measurement = Generator[Quantum, None, float]


class QuantumSizes(Protocol):
    """Knows how large a quantum may be."""

    def max_size(self, kind: QuantumKind, limit_s: float) -> int:
        """Return the largest size of this kind that stays within ``limit_s`` seconds."""
        ...


class Job:
    """An adapter's shadow, its optimizer, and its place in its data.

    Args:
        config: What to learn and how.
        decoder: The frozen weights.
        start: The state to train from: the version that is served, or a fresh adapter.
        training: Samples to learn from.
        held_out: Samples to be judged by; not among ``training``.
        sizes: Bounds the quanta.
        max_quantum_s: Longest quantum wanted.
        activations: Whether to keep or recompute them.
    """

    def __init__(
        self,
        config: JobConfig,
        decoder: Decoder,
        start: AdapterState,
        training: Sequence[TokenSample],
        held_out: Sequence[TokenSample],
        sizes: QuantumSizes,
        max_quantum_s: float,
        activations: Activations,
    ) -> None:
        table = decoder.weights.embedding
        self._dtype, self._device = table.dtype, table.device
        self.config = config
        self.num_steps = 0
        self.events: list[TrainingEvent] = []
        self._decoder = decoder
        self._training = training
        self._held_out = held_out
        self._sizes = sizes
        self._max_quantum_s = max_quantum_s
        self._activations = activations
        layout = replace(start.layout, rank=config.rank)
        self._shadow = Shadow(_fitted(start, layout), config.alpha, self._dtype, self._device)
        self._optimizer = FlatAdamW(layout.num_parameters, config.weight_decay, self._device)
        self._stream = SampleStream(training, config.seed, Cursor())
        self._step_cursor = self._stream.cursor
        self._learned: list[MicroBatch] = []
        self._loss_sum = 0.0
        self._unmeasured: AdapterState | None = start
        """What is served, until its loss is known."""
        self._new_base: tuple[AdapterState | None, AdapterState] | None = None
        """The version that the shadow comes from and the one that it is to be carried over to."""
        self._active_loss = math.inf
        self._is_ahead = False
        """Whether the shadow may differ from what is served."""
        self._is_evaluation_due = True
        self._is_snapshot_due = False
        self._saved_at_step: int | None = 0
        """Step of the latest snapshot; ``None`` when the shadow was carried elsewhere since."""

    @property
    def name(self) -> str:
        """The adapter's name."""
        return self.config.adapter

    def request_snapshot(self) -> None:
        """Ask for a snapshot at the next boundary, unless nothing was learned since the last."""
        self._is_snapshot_due = self.num_steps != self._saved_at_step

    def snapshot_now(self) -> list[TrainingEvent]:
        """Take a snapshot at once, unless nothing was learned since the last.

        Call it between two programs, with no gradient accumulated.
        """
        self.request_snapshot()
        if self._is_snapshot_due and self._new_base is None:
            for _ in self._snapshot():
                pass
        events, self.events = self.events, []
        return events

    def next_program(self) -> Program | None:
        """Return what to do next; ``None`` when the job has taken all its steps."""
        if self._new_base is not None:
            return self._rebase(*self._new_base)
        if sum(batch.num_sample_tokens for batch in self._learned) >= self.config.tokens_per_step:
            return self._step()
        if self._learned:
            return self._learn()
        if self._is_evaluation_due:
            return self._evaluate()
        if self._is_snapshot_due:
            return self._snapshot()
        if self.config.total_steps is not None and self.num_steps >= self.config.total_steps:
            return None
        return self._learn()

    def drop_gradient(self) -> None:
        """Forget the micro-batches since the last step, a half-finished one included.

        Their samples come again.
        """
        self._clear_gradient()
        self._stream = SampleStream(self._training, self.config.seed, self._step_cursor)

    def rebase(self, old: AdapterState | None, new: AdapterState) -> None:
        """Carry what was learned since ``old`` over to ``new``, which is served from now on.

        That is the job's next program. The factors change their basis, so the optimizer's moments
        start anew.
        """
        self.drop_gradient()
        self._new_base = (old if self._new_base is None else self._new_base[0], new)

    def reset(self, state: AdapterState) -> None:
        """Continue from ``state``, served from now on, and forget what was learned beyond it."""
        self._new_base = None
        self._restart(_fitted(state, self._shadow.layout), state)
        self._is_ahead = False

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> None:
        """Take over a snapshot of this job.

        What is served may be newer than the snapshot, so it is measured before any candidate.

        Raises:
            ConfigError: The snapshot was taken with another rank or alpha.
        """
        for name, value in self._shape().items():
            if meta[name] != value:
                raise ConfigError(
                    f"jobs.{name} of {self.name!r} is {value}, but its checkpoint was written with"
                    f" {meta[name]}; restore that or delete the checkpoint"
                )
        self._shadow.load_parameters(tensors["parameters"])
        self._optimizer.mean.copy_(tensors["mean"])
        self._optimizer.square.copy_(tensors["square"])
        self._optimizer.num_steps = int(meta["optimizer_steps"])
        self.num_steps = int(meta["num_steps"])
        self._saved_at_step = self.num_steps
        self._is_ahead = self._is_evaluation_due = True
        cursor = Cursor(int(meta["epoch"]), int(meta["index"]))
        if cursor.index >= len(self._training):  # The data shrank.
            cursor = Cursor(cursor.epoch + 1)
        self._step_cursor = cursor
        self.drop_gradient()

    def _shape(self) -> dict[str, str]:
        """Return what a snapshot's numbers depend on."""
        return {"rank": str(self.config.rank), "alpha": str(float(self.config.alpha))}

    def _restart(self, state: AdapterState, served: AdapterState) -> None:
        self.drop_gradient()
        self._shadow.reset(state)
        self._optimizer.reset()
        self._unmeasured = served
        self._is_evaluation_due = True
        self._saved_at_step = None

    def _clear_gradient(self) -> None:
        self._shadow.gradient.zero_()
        self._learned.clear()
        self._loss_sum = 0.0

    def _rebase(self, old: AdapterState | None, new: AdapterState) -> Program:
        """Carry the shadow over to ``new``, layer by layer."""
        layout = self._shadow.layout
        combination = Combination(rebase_terms(self._shadow.state(), old, new), layout)
        layer_size = layout.num_parameters // layout.num_layers
        for layer in range(layout.num_layers):
            yield Quantum(QuantumKind.REBASE, layer_size, layer, self.name)
            combination.add_layer(layer)
        self._new_base = None
        self._restart(combination.state(), new)
        self._is_ahead = True

    def _learn(self) -> Program:
        """Run one micro-batch forward and backward into the gradient."""
        batch = self._stream.next(self._max_tokens())
        run = Pass(self._decoder, batch, self.name, self._max_loss_rows(QuantumKind.LOSS))
        yield from run.learn(self._shadow, self._activations)
        self._learned.append(batch)
        self._loss_sum += float(run.loss.total.sum())

    def _step(self) -> Program:
        """Apply the accumulated gradient, normalized by supervised tokens."""
        shadow, num_layers = self._shadow, self._shadow.layout.num_layers
        layer_size = shadow.layout.num_parameters // num_layers
        num_supervised = sum(batch.num_supervised for batch in self._learned)
        factor, norm, rate, first = 0.0, 0.0, 0.0, 0
        for quantum in optimizer_quanta(num_layers, layer_size, _OPTIMIZER_PARAMETERS, self.name):
            yield quantum
            if first == 0:
                factor, norm = clip_factor(
                    shadow.gradient, num_supervised, self.config.max_grad_norm
                )
                if not math.isfinite(norm):
                    break
                rate = self.config.learning_rate * self._learning_rate_share()
                self._optimizer.begin_step()
            last = first + quantum.size // layer_size
            piece = slice(first * layer_size, last * layer_size)
            shadow.gradient[piece].mul_(factor)
            self._optimizer.update_(shadow.parameters, shadow.gradient, piece, rate)
            shadow.refresh(range(first, last))
            first = last
        self._finish_step(norm, num_supervised)

    def _finish_step(self, norm: float, num_supervised: int) -> None:
        self.num_steps += 1
        self.events.append(
            TrainReport(
                adapter=self.name,
                step=self.num_steps,
                num_tokens=sum(batch.num_sample_tokens for batch in self._learned),
                num_samples=sum(len(batch.lengths) for batch in self._learned),
                loss=self._loss_sum / num_supervised,
                grad_norm=norm,
                was_skipped=not math.isfinite(norm),
            )
        )
        self._clear_gradient()
        self._step_cursor = self._stream.cursor
        self._is_ahead = True
        is_last = self.num_steps == self.config.total_steps
        self._is_evaluation_due = is_last or self.num_steps % self.config.evaluate_every == 0

    def _evaluate(self) -> Program:
        """Measure the shadow on held-out samples; hand out a copy if it beats what is served."""
        if self._unmeasured is not None:
            self._active_loss = yield from self._served_loss(self._unmeasured)
            self._unmeasured = None
        loss, candidate = self._active_loss, None
        if self._is_ahead:
            loss = yield from self._held_out_loss(self._shadow.operand)
        if loss < self._active_loss:
            yield Quantum(QuantumKind.STAGE, self._shadow.layout.num_parameters, 0, self.name)
            candidate = self._shadow.state()
        self.events.append(
            HeldOutReport(
                adapter=self.name,
                step=self.num_steps,
                loss=loss,
                active_loss=self._active_loss,
                num_samples=len(self._held_out),
                candidate=candidate,
            )
        )
        if candidate is not None:
            self._active_loss = loss
        self._is_evaluation_due = False

    def _served_loss(self, served: AdapterState) -> Measurement:
        """Return the held-out loss of what is served; infinite if it is not a number."""
        yield Quantum(QuantumKind.STAGE, served.layout.num_parameters, 0, self.name)
        bank = AdapterBank(served.layout, 1, self._dtype, self._device)
        bank.load(0, served)

        def operand(layer: int, target: Target) -> tuple[Tensor, Tensor]:
            a, b = bank.factors(layer, target)
            return a[0], b[0]

        loss = yield from self._held_out_loss(operand)
        return loss if math.isfinite(loss) else math.inf

    def _held_out_loss(self, operand: Operand) -> Measurement:
        """Return the cross-entropy per supervised held-out token under an adapter."""
        total, num_tokens = 0.0, 0
        max_loss_rows = self._max_loss_rows(QuantumKind.EVALUATE_LOSS)
        for batch in self._held_out_batches():
            run = Pass(self._decoder, batch, self.name, max_loss_rows)
            yield from run.evaluate(operand)
            total += float(run.loss.total.sum())
            num_tokens += batch.num_supervised
        return total / num_tokens

    def _snapshot(self) -> Program:
        """Copy parameters, moments and cursor, between two optimizer steps."""
        sources = {
            "parameters": self._shadow.parameters,
            "mean": self._optimizer.mean,
            "square": self._optimizer.square,
        }
        tensors = {}
        for index, (name, source) in enumerate(sources.items()):
            yield Quantum(QuantumKind.SNAPSHOT, source.numel(), index, self.name)
            tensors[name] = source.to("cpu", copy=True)
        meta = {
            "num_steps": str(self.num_steps),
            "optimizer_steps": str(self._optimizer.num_steps),
            "epoch": str(self._stream.cursor.epoch),
            "index": str(self._stream.cursor.index),
            **self._shape(),
        }
        self.events.append(TrainingSnapshot(adapter=self.name, tensors=tensors, meta=meta))
        self._saved_at_step = self.num_steps
        self._is_snapshot_due = False

    def _held_out_batches(self) -> Iterator[MicroBatch]:
        limit = self._max_tokens()
        batch: list[TokenSample] = []
        for sample in self._held_out:
            if batch and sum(len(s.token_ids) for s in (*batch, sample)) > limit:
                yield pack(batch)
                batch = []
            batch.append(sample)
        yield pack(batch)

    def _max_tokens(self) -> int:
        kinds = (QuantumKind.FORWARD, QuantumKind.BACKWARD)
        bounds = [self._sizes.max_size(kind, self._max_quantum_s) for kind in kinds]
        return max(1, min(self.config.micro_batch_tokens, *bounds))

    def _max_loss_rows(self, kind: QuantumKind) -> int:
        bound = self._sizes.max_size(kind, self._max_quantum_s)
        return min(max(bound, _MIN_LOSS_ROWS), _MAX_LOSS_ROWS)

    def _learning_rate_share(self) -> float:
        config = self.config
        return learning_rate_share(
            self.num_steps, config.warmup_steps, config.schedule, config.total_steps
        )


def _fitted(state: AdapterState, layout: LoraLayout) -> AdapterState:
    """Return ``state`` in ``layout``: as it is, or truncated or extended to the layout's rank."""
    return state if state.layout == layout else combine([(1.0, state)], layout)
