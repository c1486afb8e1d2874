"""The attention kernels as functions on tensors.

A cache has the shape that ``ops/attention.py`` says, but within runs of 16 tokens its elements lie
in an order of the kernels' own: see ``cache.h``. Blocks hold whole runs.
"""

import torch
from torch import Tensor

from collm.ops.native.library import address, kernels, rows_together

RUN = 16
"""Tokens of a run; a block's size must be a multiple of it."""


def write_kv_(cache: Tensor, kv: Tensor, cache_rows: Tensor) -> None:
    """Write ``kv`` [num_tokens, 2, num_kv_heads, head_dim] to slots of ``cache``, in place.

    Values that are not finite are written as zero.
    """
    kv = kv.contiguous()
    num_tokens, _, num_kv_heads, head_dim = kv.shape
    kernels().write_kv(
        address(kv, torch.bfloat16, *kv.shape),
        address(cache, torch.bfloat16, *cache.shape[:2], *kv.shape[1:]),
        address(cache_rows, torch.int64, num_tokens),
        num_tokens,
        num_kv_heads,
        head_dim,
        torch.get_num_threads(),
    )


def decode_attention(
    q: Tensor, cache: Tensor, blocks: Tensor, lengths: Tensor, window: int | None
) -> Tensor:
    """Return the attention of one new token per row [num_rows, num_heads, head_dim].

    Args:
        q: Queries [num_rows, num_heads, head_dim], bfloat16; rows may lie apart.
        cache: [num_blocks, block_size, 2, num_kv_heads, head_dim], bfloat16, written by
            ``write_kv_``.
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
        _cache_address(cache, head_dim),
        address(blocks, torch.int64, num_rows, blocks.shape[1]),
        blocks.shape[1],
        address(lengths, torch.int64, num_rows),
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
        cache: [num_blocks, block_size, 2, num_kv_heads, head_dim], bfloat16, written by
            ``write_kv_``.
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
        _cache_address(cache, head_dim),
        address(blocks, torch.int64, len(blocks)),
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


def _cache_address(cache: Tensor, head_dim: int) -> int | None:
    num_blocks, block_size, _, num_kv_heads, _ = cache.shape
    return address(cache, torch.bfloat16, num_blocks, block_size, 2, num_kv_heads, head_dim)
