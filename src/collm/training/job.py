"""One adapter's training: what it does next, as programs of quanta.

A program is a generator that yields a quantum and performs it when resumed. A job hands out one
program at a time (a micro-batch, an optimizer step, an evaluation, a snapshot), so that several
jobs can share a trainer and a micro-batch can be dropped without a trace.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from collm.lora.algebra import rebase
from collm.lora.shadow import Shadow
from collm.lora.state import AdapterState
from collm.model.decoder import Decoder
from collm.pacing.quanta import Quantum, QuantumKind, cut
from collm.training.config import JobConfig
from collm.training.events import HeldOutReport, TrainingEvent, TrainingSnapshot, TrainReport
from collm.training.microbatch import MicroBatch, pack
from collm.training.optimizer import FlatAdamW, clip_factor, learning_rate_share
from collm.training.passes import Activations, Pass
from collm.training.samples import TokenSample
from collm.training.stream import Cursor, SampleStream

_OPTIMIZER_PARAMETERS = 1_000_000
"""About what one optimizer quantum updates."""
_MAX_LOSS_ROWS = 256
_MIN_LOSS_ROWS = 8

Program = Iterator[Quantum]


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
        self.config = config
        self.num_steps = 0
        self.events: list[TrainingEvent] = []
        self._decoder = decoder
        self._training = training
        self._held_out = held_out
        self._sizes = sizes
        self._max_quantum_s = max_quantum_s
        self._activations = activations
        self._shadow = Shadow(start, config.alpha, table.dtype, table.device)
        self._optimizer = FlatAdamW(
            self._shadow.layout.num_parameters, config.weight_decay, table.device
        )
        self._stream = SampleStream(training, config.seed, Cursor())
        self._learned: list[MicroBatch] = []
        self._loss_sum = 0.0
        self._active_loss: float | None = None
        self._is_evaluation_due = True
        self._is_snapshot_due = False

    @property
    def name(self) -> str:
        """The adapter's name."""
        return self.config.adapter

    def request_snapshot(self) -> None:
        """Ask for a snapshot after the next optimizer step."""
        self._is_snapshot_due = True

    def next_program(self) -> Program | None:
        """Return what to do next; ``None`` when the job has taken all its steps."""
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
        """Forget the micro-batches since the last step, a half-finished one included."""
        self._shadow.gradient.zero_()
        self._learned.clear()
        self._loss_sum = 0.0

    def rebase(self, old: AdapterState | None, new: AdapterState) -> None:
        """Carry what was learned since ``old`` over to ``new``, which is served from now on.

        The factors change their basis, so the optimizer's moments start anew.
        """
        self._restart(rebase(self._shadow.state(), old, new))

    def reset(self, state: AdapterState) -> None:
        """Continue from ``state``, forgetting what was learned beyond it (after a rollback)."""
        self._restart(rebase(state, None, _zero(self._shadow)))

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> None:
        """Take over a snapshot of this job."""
        self._shadow.parameters.copy_(tensors["parameters"])
        self._shadow.refresh(range(self._shadow.layout.num_layers))
        self._optimizer.mean.copy_(tensors["mean"])
        self._optimizer.square.copy_(tensors["square"])
        self._optimizer.num_steps = int(meta["optimizer_steps"])
        self.num_steps = int(meta["num_steps"])
        cursor = Cursor(int(meta["epoch"]), int(meta["index"]))
        if cursor.index < len(self._training):
            self._stream = SampleStream(self._training, self.config.seed, cursor)
        self._active_loss = json.loads(meta["active_loss"])

    def _restart(self, state: AdapterState) -> None:
        self.drop_gradient()
        self._shadow.reset(state)
        self._optimizer.reset()
        self._active_loss = None
        self._is_evaluation_due = True

    def _learn(self) -> Program:
        """Run one micro-batch forward and backward into the gradient."""
        batch = self._stream.next(self._max_tokens())
        run = Pass(self._decoder, batch, self.name, self._max_loss_rows(QuantumKind.LOSS))
        yield from run.learn(self._shadow, self._activations)
        self._learned.append(batch)
        self._loss_sum += float(run.loss.total.sum())

    def _step(self) -> Program:
        """Apply the accumulated gradient, normalized by supervised tokens."""
        shadow, layout = self._shadow, self._shadow.layout
        layer_size = layout.num_parameters // layout.num_layers
        layer_counts = cut(layout.num_layers, max(1, _OPTIMIZER_PARAMETERS // layer_size))
        num_supervised = sum(batch.num_supervised for batch in self._learned)
        factor, norm, rate, first = 0.0, 0.0, 0.0, 0
        for index, count in enumerate(layer_counts):
            yield Quantum(QuantumKind.OPTIMIZER, count * layer_size, index, self.name)
            if index == 0:
                factor, norm = clip_factor(
                    shadow.gradient, num_supervised, self.config.max_grad_norm
                )
                if not math.isfinite(norm):
                    break
                rate = self.config.learning_rate * self._learning_rate_share()
                self._optimizer.begin_step()
            piece = slice(first * layer_size, (first + count) * layer_size)
            shadow.gradient[piece].mul_(factor)
            self._optimizer.update_(shadow.parameters, shadow.gradient, piece, rate)
            shadow.refresh(range(first, first + count))
            first += count
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
        self.drop_gradient()
        is_last = self.num_steps == self.config.total_steps
        self._is_evaluation_due = is_last or self.num_steps % self.config.evaluate_every == 0

    def _evaluate(self) -> Program:
        """Measure the shadow on held-out samples; hand out a copy if it beats what is served."""
        total, num_tokens = 0.0, 0
        for batch in self._held_out_batches():
            run = Pass(self._decoder, batch, self.name, self._max_loss_rows(QuantumKind.EVALUATE_LOSS))
            yield from run.evaluate(self._shadow.operand)
            total += float(run.loss.total.sum())
            num_tokens += batch.num_supervised
        loss = total / num_tokens
        if self._active_loss is None:
            # Nothing was learned yet beyond what is served: this is its own loss.
            self._active_loss = loss
        candidate = None
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
        self._active_loss = min(loss, self._active_loss)
        self._is_evaluation_due = False

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
            "active_loss": json.dumps(self._active_loss),
        }
        self.events.append(TrainingSnapshot(adapter=self.name, tensors=tensors, meta=meta))
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


def _zero(shadow: Shadow) -> AdapterState:
    """Return an adapter of ΔW = 0 in the shadow's layout."""
    return AdapterState(shadow.layout, torch.zeros(shadow.layout.num_parameters))
