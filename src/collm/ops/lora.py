"""Unmerged LoRA: for batches that mix adapters, and for training one."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from collm.ops.linear import FrozenLinear, NativeLinear
from collm.ops.native import training_linear as native
from collm.ops.threads import one_thread

_FUSED_ROWS = 32
"""Rows up to which the native kernel adds adapters itself; more are faster as products."""
_ONE_THREAD_ROWS = 48
"""Rows up to which a segment's products are faster without waking other threads."""

Segment = tuple[int, int, int]
"""(first row, end row, adapter slot): consecutive rows of one adapter; the base has no segment."""


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """Which rows of a step use which adapter, in the two forms that kernels read."""

    segments: Sequence[Segment]
    """Disjoint runs of rows; rows of the bare base are in none."""
    slots: Tensor
    """Adapter slot of each row [num_tokens], int32; -1 for the bare base."""


def adapted_linear(
    linear: FrozenLinear, x: Tensor, rows: AdapterRows, bank_a: Tensor, bank_b: Tensor
) -> Tensor:
    """Return ``x Wᵀ + b`` plus each row's adapter output, unmerged.

    Args:
        linear: The frozen base projection.
        x: Layer input [num_tokens, in_features].
        rows: The rows' adapters.
        bank_a: A of all slots [num_slots, rank, in_features].
        bank_b: Transposed B of all slots [num_slots, rank, out_features], scale folded in.
    """
    if not rows.segments:
        return linear.forward(x)
    if isinstance(linear, NativeLinear) and x.shape[0] <= _FUSED_ROWS:
        return linear.forward_adapted(x, rows.slots, bank_a, bank_b)
    y = linear.forward(x)
    add_lora_(y, x, rows.segments, bank_a, bank_b)
    return y


def add_lora_(
    y: Tensor, x: Tensor, segments: Sequence[Segment], bank_a: Tensor, bank_b: Tensor
) -> None:
    """Add each segment's adapter output to the base output, in place.

    Rows ``i`` of a segment with slot ``s`` gain ``(x[i] @ A[s].T) @ B[s]``; rows outside every
    segment stay as they are, so base-only and adapted requests share one batch.

    Args:
        y: Base projection [num_tokens, out_features]; changed.
        x: Layer input [num_tokens, in_features].
        segments: Disjoint runs of rows.
        bank_a: A of all slots [num_slots, rank, in_features].
        bank_b: Transposed B of all slots [num_slots, rank, out_features], scale folded in.

    Source: LoRA, arXiv 2106.09685, section 4.1.
    """
    for start, stop, slot in segments:
        with one_thread() if stop - start <= _ONE_THREAD_ROWS else nullcontext():
            y[start:stop].addmm_(functional.linear(x[start:stop], bank_a[slot]), bank_b[slot])


def add_lora_reference(
    y: Tensor, x: Tensor, slots: Tensor, bank_a: Tensor, bank_b: Tensor
) -> Tensor:
    """Return what ``add_lora_`` computes, token by token.

    ``slots`` [num_tokens] names each token's slot; -1 adds nothing.
    """
    out = y.clone()
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            out[row] += bank_a[slot].mv(x[row]) @ bank_b[slot]
    return out


@dataclass(frozen=True, slots=True)
class Adapted:
    """A frozen linear and the one adapter that is trained on it."""

    linear: FrozenLinear
    a: Tensor
    """A [rank, in_features], in the linear's dtype."""
    b: Tensor
    """Bᵀ [rank, out_features], scale folded in."""
    part_sizes: Sequence[int]
    """Outputs of the linears that are fused into it. Each has its own share of the ranks, and B is
    zero elsewhere."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``x Wᵀ + t Bᵀ`` [num_tokens, out_features] and t = ``x Aᵀ`` [num_tokens, rank]."""
        if isinstance(self.linear, NativeLinear) and self._is_native:
            packed, bias = self.linear.packed, self.linear.bias
            return native.adapted(x, packed, bias, self.a, self.b, self.part_sizes)
        t = functional.linear(x, self.a)
        return self.linear.forward(x).addmm_(t, self.b), t

    def backward(self, x: Tensor, t: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients by x, A and B, for ``dy`` [num_tokens, out_features].

        That by B is [out_features, rank / num_parts]: each part's own block.
        """
        if isinstance(self.linear, NativeLinear) and self._is_native:
            packed = self.linear.packed
            return native.adapted_back(x, t, dy, packed, self.a, self.b, self.part_sizes)
        dt = functional.linear(dy, self.b)
        dx = self.linear.input_grad(dy).addmm_(dt, self.a)
        outputs = torch.split_with_sizes(dy, list(self.part_sizes), dim=1)
        ranks = t.chunk(len(self.part_sizes), dim=1)
        blocks = [part.T @ share for part, share in zip(outputs, ranks, strict=True)]
        return dx, dt.T @ x, torch.cat(blocks)

    @property
    def _is_native(self) -> bool:
        return native.can_adapt(self.a.shape[0], self.part_sizes)
