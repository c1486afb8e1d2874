"""The attention kernels as functions on tensors."""

import torch
from torch import Tensor

from collm.ops.native.library import kernels, rows_together


def decode_attention(
    q: Tensor, cache: Tensor, blocks: Tensor, lengths: Tensor, window: int | None
) -> Tensor:
    """Return the attention of one new token per row [num_rows, num_heads, head_dim].

    Args:
        q: Queries [num_rows, num_heads, head_dim], bfloat16; rows may lie apart.
        cache: [num_blocks, block_size, 2, num_kv_heads, head_dim], bfloat16.
        blocks: Block ids [num_rows, max_blocks], int64.
        lengths: Keys of each row, its own included [num_rows], int64.
        window: Keys a row may look back on, itself included; ``None`` for all.
    """
    q = rows_together(q)
    num_rows, num_heads, head_dim = q.shape
    out = q.new_empty(num_rows, num_heads, head_dim)
    kernels().decode_attention(
        q.data_ptr(),
        q.stride(0),
        cache.data_ptr(),
        blocks.data_ptr(),
        blocks.shape[1],
        lengths.data_ptr(),
        out.data_ptr(),
        num_rows,
        num_heads,
        cache.shape[3],
        head_dim,
        cache.shape[1],
        window or 0,
        head_dim**-0.5,
        torch.get_num_threads(),
    )
    return out


def prefill_attention(
    q: Tensor, cache: Tensor, blocks: Tensor, num_context: int, window: int | None
) -> Tensor:
    """Return the causal attention of one sequence's chunk [num_rows, num_heads, head_dim].

    Args:
        q: Queries [num_rows, num_heads, head_dim], bfloat16; rows may lie apart.
        cache: [num_blocks, block_size, 2, num_kv_heads, head_dim], bfloat16.
        blocks: Block ids of the sequence's keys, the chunk's included, int64.
        num_context: Keys before the chunk.
        window: Keys a row may look back on, itself included; ``None`` for all.
    """
    q = rows_together(q)
    num_rows, num_heads, head_dim = q.shape
    out = q.new_empty(num_rows, num_heads, head_dim)
    kernels().prefill_attention(
        q.data_ptr(),
        q.stride(0),
        cache.data_ptr(),
        blocks.data_ptr(),
        out.data_ptr(),
        num_rows,
        num_context,
        num_heads,
        cache.shape[3],
        head_dim,
        cache.shape[1],
        window or 0,
        head_dim**-0.5,
        torch.get_num_threads(),
    )
    return out
