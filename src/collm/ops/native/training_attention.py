"""Attention of training, forward and backward: the kernels as functions on tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from collm.ops.native.library import address, kernels, rows_together


@dataclass(frozen=True, slots=True)
class Spans:
    """Which rows of a micro-batch are which samples."""

    starts: Tensor
    """First row of each sample [num_samples], int64."""
    lengths: Tensor
    """Rows of each sample [num_samples], int64."""
    prefixes: Tensor
    """How many rows from row 0 on each sample begins with [num_samples], int64."""
    window: int | None
    """Keys a row may look back on, itself included; ``None`` for all."""


def training_attention(q: Tensor, kv: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
    """Attend causally within samples.

    Args:
        q: Rotated queries [num_rows, num_heads, head_dim], bfloat16; rows may lie apart.
        kv: [num_rows, 2, num_kv_heads, head_dim], bfloat16.
        spans: The samples; rows in none of them come out zero.

    Returns:
        Outputs [num_rows, num_heads, head_dim], and what the gradient needs of the sums: their
        logarithms [num_kv_heads, num_rows, num_heads / num_kv_heads], float32.
    """
    q, kv = rows_together(q), kv.contiguous()
    num_rows, num_heads, head_dim = q.shape
    out = q.new_zeros(num_rows, num_heads, head_dim)
    num_kv_heads = kv.shape[2]
    log_sums = torch.zeros(num_kv_heads, num_rows, num_heads // num_kv_heads)
    kernels().training_attention(
        *_addresses(q, kv, spans),
        out.data_ptr(),
        log_sums.data_ptr(),
        torch.get_num_threads(),
    )
    return out, log_sums


def training_attention_back(
    q: Tensor, kv: Tensor, spans: Spans, out: Tensor, log_sums: Tensor, d_out: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients by ``q`` and ``kv``, for ``d_out`` of the output; shapes as above."""
    q, kv, d_out = rows_together(q), kv.contiguous(), d_out.contiguous()
    dq, dkv, deltas = q.new_zeros(q.shape), torch.zeros_like(kv), torch.empty_like(log_sums)
    kernels().training_attention_back(
        *_addresses(q, kv, spans),
        address(out, torch.bfloat16, *q.shape),
        address(log_sums, torch.float32, kv.shape[2], len(q), q.shape[1] // kv.shape[2]),
        address(d_out, torch.bfloat16, *q.shape),
        deltas.data_ptr(),
        dq.data_ptr(),
        dkv.data_ptr(),
        torch.get_num_threads(),
    )
    return dq, dkv


def _addresses(q: Tensor, kv: Tensor, spans: Spans) -> tuple[int | None, ...]:
    """Return what both calls begin with."""
    num_rows, num_heads, head_dim = q.shape
    num_samples = len(spans.starts)
    return (
        q.data_ptr(),
        q.stride(0),
        address(kv, torch.bfloat16, num_rows, 2, kv.shape[2], head_dim),
        address(spans.starts, torch.int64, num_samples),
        address(spans.lengths, torch.int64, num_samples),
        address(spans.prefixes, torch.int64, num_samples),
        num_samples,
        num_rows,
        num_heads,
        kv.shape[2],
        head_dim,
        spans.window or 0,
    )
