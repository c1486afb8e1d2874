"""Unmerged LoRA for batches that mix adapters."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from collm.ops.threads import one_thread

_FEW_ROWS = 32
"""Rows up to which a segment is computed in float32 on one thread: the matrix library's bfloat16
products start up slowly, and waking another thread takes longer than the work."""

Segment = tuple[int, int, int]
"""(first row, end row, adapter slot): consecutive rows of one adapter; the base has no segment."""


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
        bank_a: A of all slots [num_slots, rank, in_features], float32.
        bank_b: Transposed B of all slots [num_slots, rank, out_features], float32, scale folded in.

    Source: LoRA, arXiv 2106.09685, section 4.1.
    """
    for start, stop, slot in segments:
        y_rows, x_rows = y[start:stop], x[start:stop]
        if stop - start <= _FEW_ROWS:
            with one_thread():
                y_rows.add_(functional.linear(x_rows.float(), bank_a[slot]) @ bank_b[slot])
        else:
            a, b = bank_a[slot].to(x.dtype), bank_b[slot].to(x.dtype)
            y_rows.addmm_(functional.linear(x_rows, a), b)


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
