"""Attention for serving, over paged keys and values.

Cache of one layer: [num_blocks, block_size, 2, num_kv_heads, head_dim], keys at index 0 of the
third dimension and values at 1, so that one gather brings both. Where the kernels read it
(``can_attend_natively``), elements lie in their order within a block; nobody else looks inside.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from collm.ops.native import attention as native
from collm.ops.native.library import can_attend


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Rows of one sequence's chunk in the step's batch."""

    start: int
    stop: int
    blocks: Tensor
    """Block ids [num_blocks_used] that hold the sequence's keys, this chunk's included."""
    num_context: int
    """Tokens computed before this chunk."""
    mask: Tensor | None
    """Additive mask [num_rows, num_context + num_rows] for torch; ``None``: plain causal, no
    context. The kernels read no masks."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Where a step's rows find their keys: decode rows first, then a span per longer chunk."""

    cache_rows: Tensor
    """Flat cache row [num_tokens] that each new key and value is written to."""
    num_decode: int
    decode_blocks: Tensor
    """Block ids [num_decode, max_blocks], padded with block 0."""
    decode_lengths: Tensor
    """Keys of each decode row, its own included [num_decode], int64."""
    decode_mask: Tensor | None
    """The same with the window as an additive mask [num_decode, 1, 1, max_blocks * block_size], for
    torch; the kernels read no masks."""
    window: int | None
    """Keys a row may look back on, itself included; ``None`` for all."""
    spans: tuple[PrefillSpan, ...]


def write_kv_(cache: Tensor, kv: Tensor, cache_rows: Tensor) -> None:
    """Write ``kv`` [num_tokens, 2, num_kv_heads, head_dim] to rows of one layer's cache, in place.

    The cache stays finite: a masked key still takes part in products with weight 0, so a NaN that
    an adapter left in a block would reach whichever request gets the block next.
    """
    if can_attend_natively(cache):
        native.write_kv_(cache, kv, cache_rows)
        return
    cache.view(-1, *kv.shape[1:]).index_copy_(0, cache_rows, kv.nan_to_num(0.0, 0.0, 0.0))


def paged_attention(q: Tensor, kv: Tensor, cache: Tensor, plan: AttentionPlan) -> Tensor:
    """Return attention outputs [num_tokens, num_heads * head_dim].

    Args:
        q: Rotated queries [num_tokens, num_heads, head_dim].
        kv: This step's rotated keys and values [num_tokens, 2, num_kv_heads, head_dim], already
            written to ``cache``.
        cache: One layer's cache.
        plan: Rows, blocks and masks of the step.
    """
    num_tokens, num_heads, head_dim = q.shape
    attend_decodes, attend_span = _decode, _prefill
    if can_attend_natively(cache):
        attend_decodes, attend_span = _decode_natively, _prefill_natively
    parts = []
    if plan.num_decode:
        parts.append(attend_decodes(q[: plan.num_decode], cache, plan))
    parts += [attend_span(q, kv, cache, span, plan.window) for span in plan.spans]
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out.reshape(num_tokens, num_heads * head_dim)


def can_attend_natively(cache: Tensor) -> bool:
    """Return whether this project's own kernels write and read such a cache, here."""
    return (
        cache.device.type == "cpu"
        and cache.shape[1] % native.RUN == 0
        and can_attend(cache.dtype, cache.shape[-1])
    )


def _decode_natively(q: Tensor, cache: Tensor, plan: AttentionPlan) -> Tensor:
    """Attend one query row per sequence to keys where they lie."""
    return native.decode_attention(q, cache, plan.decode_blocks, plan.decode_lengths, plan.window)


def _prefill_natively(
    q: Tensor, kv: Tensor, cache: Tensor, span: PrefillSpan, window: int | None
) -> Tensor:
    """Attend one sequence's chunk to its keys where they lie."""
    rows = q[span.start : span.stop]
    return native.prefill_attention(rows, cache, span.blocks, span.num_context, window)


def _decode(q: Tensor, cache: Tensor, plan: AttentionPlan) -> Tensor:
    """Attend one query row per sequence; heads that share a key head become its query rows."""
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = cache.shape[3]
    kv = cache.index_select(0, plan.decode_blocks.view(-1))
    kv = kv.view(num_rows, -1, 2, num_kv_heads, head_dim).permute(2, 0, 3, 1, 4)
    grouped = q.view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    out = functional.scaled_dot_product_attention(grouped, kv[0], kv[1], attn_mask=plan.decode_mask)
    return out.reshape(num_rows, num_heads, head_dim)


def _prefill(q: Tensor, kv: Tensor, cache: Tensor, span: PrefillSpan, window: int | None) -> Tensor:
    """Attend one sequence's chunk to its context and, causally, to itself."""
    rows = slice(span.start, span.stop)
    if span.mask is None:
        keys = kv[rows]
    else:
        num_keys = span.num_context + span.stop - span.start
        keys = cache.index_select(0, span.blocks).flatten(0, 1)[:num_keys]
    out = functional.scaled_dot_product_attention(
        q[rows].transpose(0, 1).unsqueeze(0),
        keys[:, 0].transpose(0, 1).unsqueeze(0),
        keys[:, 1].transpose(0, 1).unsqueeze(0),
        attn_mask=span.mask,
        is_causal=span.mask is None,
        enable_gqa=True,
    )
    return out.squeeze(0).transpose(0, 1)
