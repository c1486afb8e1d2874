"""Unmerged LoRA: for batches that mix adapters, and for training one."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from collm.ops.linear import FrozenLinear, NativeLinear
from collm.ops.native import linears as native_linears
from collm.ops.native import training_linear as native
from collm.ops.native.library import COLUMNS, can_take
from collm.ops.threads import one_thread

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


@dataclass(frozen=True, slots=True)
class SlotFactors:
    """The adapter factors of one fused linear, of all slots, as what adds them reads them.

    ``rank`` is what a slot has room for. An adapter of a lower one lies at the beginning of its
    slot as if that were the room, and what follows is never read: it costs what it is, not what
    might be there.
    """

    a: Tensor
    """The parts' A, stacked [num_slots, num_parts * rank, in_features]."""
    b: Tensor
    """Bᵀ, the scale folded in. Block diagonal [num_slots, num_parts * rank, out_features]; or, if
    ``is_blocked``, blocks of 32 outputs with the ranks of their part [num_slots,
    out_features / 32, rank, 32]."""
    ranks: Tensor
    """Of what each slot holds [num_slots], int32 on the CPU; 0 before anything does."""
    part_sizes: tuple[int, ...]
    """Outputs of the linears that are fused."""
    is_blocked: bool

    def dense(self, slot: int) -> tuple[Tensor, Tensor]:
        """Return A [num_parts * rank, in_features] and block-diagonal Bᵀ of what a slot holds."""
        a = self._a_of(slot)
        if not self.is_blocked:
            return a, self.b[slot, : len(a)]
        blocks = self._blocks_of(slot)
        b = blocks.transpose(0, 1).reshape(blocks.shape[1], -1)
        diagonal = b.new_zeros(len(a), b.shape[1])
        write_diagonal(b, self.part_sizes, diagonal)
        return a, diagonal

    def load(self, slot: int, a: Tensor, b: Tensor) -> None:
        """Copy an adapter into a slot.

        Args:
            slot: Where to.
            a: [num_parts, rank, in_features], of at most the slots' rank.
            b: The parts' Bᵀ side by side [rank, out_features].
        """
        assert len(self.part_sizes) * len(b) <= self.a.shape[1], (len(b), self.a.shape)
        self.ranks[slot] = len(b)
        room = self._a_of(slot)
        room.view(a.shape).copy_(a)
        if self.is_blocked:
            self._blocks_of(slot).copy_(native_linears.block_factors(b))
        else:
            write_diagonal(b, self.part_sizes, self.b[slot, : len(room)].zero_())

    def _a_of(self, slot: int) -> Tensor:
        return self.a[slot, : int(self.ranks[slot]) * len(self.part_sizes)]

    def _blocks_of(self, slot: int) -> Tensor:
        """Return Bᵀ of what a slot holds, in blocks [out_features / 32, its rank, 32]."""
        num_blocks, _, columns = self.b.shape[1:]
        rank = int(self.ranks[slot])
        taken = self.b[slot].view(-1)[: num_blocks * rank * columns]
        return taken.view(num_blocks, rank, columns)


def write_diagonal(b: Tensor, part_sizes: Sequence[int], out: Tensor) -> None:
    """Write the parts' Bᵀ, side by side [rank, out_features], as blocks of a diagonal matrix.

    With A's parts stacked, one product with this matrix applies all parts at once: row block ``p``
    of ``out`` [num_parts * its rank, out_features] reaches only the outputs of part ``p``. It must
    be zero outside the blocks.
    """
    column, stride = 0, out.shape[0] // len(part_sizes)
    for part, size in enumerate(part_sizes):
        columns = slice(column, column + size)
        out[part * stride : part * stride + len(b), columns].copy_(b[:, columns])
        column += size


def reserve_factors(
    num_slots: int,
    rank: int,
    in_features: int,
    part_sizes: tuple[int, ...],
    zeros: Callable[[tuple[int, ...]], Tensor],
) -> SlotFactors:
    """Return room for adapters of up to ``rank``, which ``zeros`` makes."""
    num_parts, out_features = len(part_sizes), sum(part_sizes)
    a = zeros((num_slots, num_parts * rank, in_features))
    # Without memory, on the device "meta", room is counted as the CPU would have it.
    is_for_cpu = a.device.type in ("cpu", "meta")
    takes = can_take(torch.empty(0, in_features, dtype=a.dtype))
    is_blocked = is_for_cpu and takes and not any(size % COLUMNS for size in part_sizes)
    if is_blocked:
        b = zeros((num_slots, out_features // COLUMNS, rank, COLUMNS))
    else:
        b = zeros((num_slots, num_parts * rank, out_features))
    ranks = torch.zeros(num_slots, dtype=torch.int32)
    return SlotFactors(a, b, ranks, part_sizes, is_blocked)


def adapted_linear(
    linear: FrozenLinear, x: Tensor, rows: AdapterRows, factors: SlotFactors
) -> Tensor:
    """Return ``x Wᵀ + b`` plus each row's adapter output, unmerged.

    Args:
        linear: The frozen base projection.
        x: Layer input [num_tokens, in_features].
        rows: The rows' adapters.
        factors: Those of all slots.
    """
    if not rows.segments:
        return linear.forward(x)
    if isinstance(linear, NativeLinear) and factors.is_blocked:
        return linear.forward_adapted(
            x, rows.slots, factors.a, factors.b, factors.ranks, factors.part_sizes
        )
    y = linear.forward(x)
    add_lora_(y, x, rows.segments, {slot: factors.dense(slot) for _, _, slot in rows.segments})
    return y


def add_lora_(
    y: Tensor,
    x: Tensor,
    segments: Sequence[Segment],
    factors: Mapping[int, tuple[Tensor, Tensor]],
) -> None:
    """Add each segment's adapter output to the base output, in place.

    Rows ``i`` of a segment with slot ``s`` gain ``(x[i] @ A[s].T) @ Bᵀ[s]``; rows outside every
    segment stay as they are, so base-only and adapted requests share one batch.

    Args:
        y: Base projection [num_tokens, out_features]; changed.
        x: Layer input [num_tokens, in_features].
        segments: Disjoint runs of rows.
        factors: A [rank, in_features] and Bᵀ [rank, out_features], scale folded in, by slot.

    Source: LoRA, arXiv 2106.09685, section 4.1.
    """
    for start, stop, slot in segments:
        a, b = factors[slot]
        with one_thread() if stop - start <= _ONE_THREAD_ROWS else nullcontext():
            y[start:stop].addmm_(functional.linear(x[start:stop], a), b)


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
