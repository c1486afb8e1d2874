"""Forward and backward over frozen weights, one half layer at a time.

Each function is a generator: it yields a quantum, and performs it when resumed. Nothing spans half
layers but the residual stream between them, so a micro-batch can stop at any yield for as long as
serving needs. A sample that is too long for that goes through each half in several pieces.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

from collm.lora.shadow import Shadow, TrainingFactors
from collm.model.decoder import Decoder
from collm.model.layers import Project, Target
from collm.model.weights import LayerWeights
from collm.ops.elementwise import rms_norm
from collm.ops.linear import FrozenLinear
from collm.ops.lora import Adapted
from collm.ops.loss import cross_entropy
from collm.pacing.quanta import Quantum, QuantumKind, cut
from collm.training.halves import AttentionHalf, Half, MlpHalf
from collm.training.microbatch import MicroBatch

Operand = Callable[[int, Target], tuple[Tensor, Tensor]]
"""Gives A [rank, in_features] and Bᵀ [rank, out_features] of a layer's fused linear."""

Activations = Literal["keep", "recompute"]


@dataclass(slots=True)
class LossSums:
    """What the loss quanta add up."""

    total: Tensor
    """Summed cross-entropy of each sample [num_samples], in nats."""
    num_tokens: Tensor
    """Supervised tokens of each sample [num_samples]."""
    num_wrong: Tensor
    """Those of each sample [num_samples] that greedy decoding would not choose; evaluation alone
    counts them."""

    def means(self) -> list[float]:
        """Return each sample's cross-entropy per supervised token."""
        means: list[float] = (self.total / self.num_tokens).tolist()
        return means


class Pass:
    """One micro-batch on its way through the decoder.

    Args:
        decoder: The weights that serve.
        batch: Packed samples.
        adapter: Name put on the quanta.
        max_loss_rows: Most positions of one loss quantum.
        max_rows: Most rows of half a layer, which a lone sample is cut for.
    """

    def __init__(
        self,
        decoder: Decoder,
        batch: MicroBatch,
        adapter: str,
        max_loss_rows: int,
        max_rows: int | None = None,
    ) -> None:
        self._decoder = decoder
        self._batch = batch = batch.to(decoder.weights.embedding.device)
        self._adapter = adapter
        self._pieces = batch.pieces(max_rows)
        self._loss_pieces = cut(batch.num_supervised, max_loss_rows)
        self._hidden = torch.empty(0)
        num_samples = len(batch.lengths)
        owners = batch.sample_of_target
        counts = owners.new_zeros(num_samples).index_add_(0, owners, torch.ones_like(owners))
        total = torch.zeros_like(counts, dtype=torch.float32)
        self.loss = LossSums(total, counts, torch.zeros_like(counts))

    def learn(self, shadow: Shadow, activations: Activations) -> Iterator[Quantum]:
        """Add the gradient of the summed loss, samples weighted, to ``shadow.gradient``."""
        yield self._quantum(QuantumKind.PREPARE, self._batch.num_tokens)
        halves = self._prepare(lambda layer, index: _training_projection(layer, index, shadow))
        keeps = activations == "keep"
        saved: list[tuple[Tensor, Tensor | None]] = []
        for index, half in enumerate(halves):
            outputs: list[Tensor] = []
            for piece, rows in enumerate(self._pieces):
                yield self._quantum(QuantumKind.FORWARD, len(rows), index)
                x = self._hidden[rows.start : rows.stop].requires_grad_()
                with torch.set_grad_enabled(keeps):
                    y = half.forward(x, piece)
                saved.append((x, y if keeps else None))
                outputs.append(y.detach())
            self._hidden = _joined(outputs)
        gradient = torch.zeros_like(self._hidden)
        for index, (first, last) in enumerate(self._loss_spans()):
            yield self._quantum(QuantumKind.LOSS, last - first, index)
            loss_rows = self._batch.loss_rows[first:last]
            gradient.index_copy_(0, loss_rows, self._loss(first, last, wants_gradient=True))
        for index in reversed(range(len(halves))):
            gradients: list[Tensor] = []
            for piece, rows in reversed(list(enumerate(self._pieces))):
                yield self._quantum(QuantumKind.BACKWARD, len(rows), index)
                x, kept = saved.pop()
                y = halves[index].forward(x, piece) if kept is None else kept
                dy = gradient[rows.start : rows.stop]
                gradients.insert(0, halves[index].backward(x, y, piece, dy))
            gradient = _joined(gradients)

    def evaluate(self, operand: Operand) -> Iterator[Quantum]:
        """Compute the loss alone, under the adapter that ``operand`` gives."""
        yield self._quantum(QuantumKind.PREPARE, self._batch.num_tokens)
        halves = self._prepare(lambda layer, index: _frozen_projection(layer, index, operand))
        for index, half in enumerate(halves):
            outputs: list[Tensor] = []
            for piece, rows in enumerate(self._pieces):
                yield self._quantum(QuantumKind.EVALUATE_FORWARD, len(rows), index)
                with torch.no_grad():
                    outputs.append(half.forward(self._hidden[rows.start : rows.stop], piece))
            self._hidden = _joined(outputs)
        for index, (first, last) in enumerate(self._loss_spans()):
            yield self._quantum(QuantumKind.EVALUATE_LOSS, last - first, index)
            self._loss(first, last, wants_gradient=False)

    def _quantum(self, kind: QuantumKind, size: int, index: int = 0) -> Quantum:
        return Quantum(kind, size, index, self._adapter)

    def _prepare(self, projection: Callable[[LayerWeights, int], Project]) -> list[Half]:
        """Look up embeddings and return the half layers in order."""
        decoder, batch, spec = self._decoder, self._batch, self._decoder.spec
        self._hidden = decoder.weights.embedding.index_select(0, batch.token_ids)
        rotations = [
            decoder.rotary.rows(batch.positions[rows.start : rows.stop]) for rows in self._pieces
        ]
        dtype = self._hidden.dtype
        attends = {
            window: [
                batch.attention(window, dtype, spec.head_dim, rows).attend for rows in self._pieces
            ]
            for window in set(spec.sliding_windows)
        }
        halves: list[Half] = []
        for index, layer in enumerate(decoder.weights.layers):
            project = projection(layer, index)
            attend = attends[spec.sliding_windows[index]]
            halves.append(AttentionHalf(layer, spec, rotations, project, attend))
            halves.append(MlpHalf(layer, spec, project))
        return halves

    def _loss_spans(self) -> Iterator[tuple[int, int]]:
        first = 0
        for size in self._loss_pieces:
            yield first, first + size
            first += size

    def _loss(self, first: int, last: int, *, wants_gradient: bool) -> Tensor:
        """Add the loss of targets ``first`` to ``last``; return its gradient by hidden state.

        Cross-entropy and its gradient are taken together, so the logits live for one quantum.
        """
        weights, spec = self._decoder.weights, self._decoder.spec
        rows, targets = self._batch.loss_rows[first:last], self._batch.targets[first:last]
        hidden = self._hidden.index_select(0, rows).requires_grad_(wants_gradient)
        with torch.set_grad_enabled(wants_gradient):
            normed = rms_norm(hidden, weights.final_norm, spec.rms_norm_eps)
        samples = self._batch.sample_of_target[first:last]
        with torch.no_grad():
            logits = weights.head.forward(normed.detach())
            if not wants_gradient:
                is_wrong = logits.argmax(dim=-1) != targets
                self.loss.num_wrong.index_add_(0, samples, is_wrong.to(torch.int64))
            losses, d_logits = cross_entropy(logits, targets, wants_gradient=wants_gradient)
            self.loss.total.index_add_(0, samples, losses)
            if d_logits is None:
                return hidden
            d_normed = weights.head_gradient.input_grad(d_logits)
            d_normed = (d_normed * self._batch.weights[samples].unsqueeze(1)).to(normed.dtype)
        (d_hidden,) = torch.autograd.grad(normed, hidden, d_normed)
        return d_hidden


def warm_up(decoder: Decoder) -> None:
    """Pay for what a process's first gradient costs, before anybody waits for it.

    Starting torch's gradient engine takes a third of a second, and the vocabulary table must come
    in from the disk.
    """
    weights, table = decoder.weights, decoder.weights.embedding
    x = weights.final_norm.clone().unsqueeze(0).requires_grad_()
    y = rms_norm(x, weights.final_norm, decoder.spec.rms_norm_eps)
    torch.autograd.grad(y, x, torch.ones_like(y))
    weights.head_gradient.input_grad(table.new_zeros(32, table.shape[0]))


def _joined(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _training_projection(layer: LayerWeights, index: int, shadow: Shadow) -> Project:
    def project(target: Target, x: Tensor) -> Tensor:
        base, factors = getattr(layer, target), shadow.factors(index, target)
        y: Tensor = _LoraLinear.apply(x, base, factors)  # type: ignore[no-untyped-call]
        return y

    return project


def _frozen_projection(layer: LayerWeights, index: int, operand: Operand) -> Project:
    def project(target: Target, x: Tensor) -> Tensor:
        a, b = operand(index, target)
        y, _ = Adapted(getattr(layer, target), a, b, [b.shape[1]]).forward(x)
        return y

    return project


class _LoraLinear(Function):
    """``y = x Wᵀ + (x Aᵀ) Bᵀ`` with W frozen; backward adds dA and dB to the shadow's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, base: FrozenLinear, factors: TrainingFactors) -> Tensor:
        ctx.adapted, ctx.factors = factors.on(base), factors
        y: Tensor
        y, t = ctx.adapted.forward(x)
        ctx.save_for_backward(x, t)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        dx, update_a, update_b = ctx.adapted.backward(*ctx.saved_tensors, grads[0].contiguous())
        ctx.factors.accumulate_(update_a, update_b)
        return dx, None, None
