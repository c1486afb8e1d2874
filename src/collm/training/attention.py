"""Attention inside packed micro-batches: samples see their own tokens and their prefix only.

Rows of a micro-batch are the shared prefix, then the remaining tokens of each sample that begins
with it, or all tokens of one that does not::

    [ prefix | sample 0 | sample 1 | … ]

Samples of similar length form a group that is padded to a rectangle, so that one batched product
serves them all; the padding comes last in each sample, where causality hides it.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

_FUSED_FROM = 256
"""Number of keys from which the fused kernel is used: below, plain products are several times
faster on a CPU; above, their score matrices grow too large."""
_LENGTH_MULTIPLE = 8
"""Groups are padded to this, so that few different shapes occur."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Samples padded to one length."""

    num_samples: int
    padded_rows: Tensor
    """Row of each padded place [num_samples * length]; padding points one past the last row."""
    places: Tensor
    """Padded place of each row [num_rows]; rows of other groups point one past the last place."""
    mask: Tensor
    """Additive mask [length, num_prefix + length]."""


@dataclass(frozen=True, slots=True)
class PackedAttention:
    """Which rows of a micro-batch attend to which."""

    num_prefix: int
    groups: tuple[AttentionGroup, ...]
    """The prefix, if there is one, is a group of its own."""

    def attend(self, q: Tensor, kv: Tensor) -> Tensor:
        """Return outputs [num_rows, num_heads * head_dim]; see ``model.layers.Attend``."""
        out = None
        for group in self.groups:
            part = self._attend_group(q, kv, group)
            out = part if out is None else out + part
        assert out is not None
        return out.flatten(1)

    def _attend_group(self, q: Tensor, kv: Tensor, group: AttentionGroup) -> Tensor:
        """Attend within one group; rows of other groups come out zero."""
        num_samples, (_, num_heads, head_dim) = group.num_samples, q.shape
        num_kv_heads, length = kv.shape[2], group.mask.shape[0]
        queries = _gather(q, group.padded_rows, group.places)
        keys = _gather(kv, group.padded_rows, group.places)
        # Query heads that share a key head are laid side by side as more query rows.
        queries = queries.view(num_samples, length, num_kv_heads, -1, head_dim)
        queries = queries.permute(0, 2, 3, 1, 4).flatten(2, 3)
        keys = keys.view(num_samples, length, 2, num_kv_heads, head_dim).permute(2, 0, 3, 1, 4)
        if group.mask.shape[1] > length:
            prefix = kv[: self.num_prefix].permute(1, 2, 0, 3).unsqueeze(1)
            keys = torch.cat((prefix.expand(-1, num_samples, -1, -1, -1), keys), dim=3)
        out = _masked_attention(queries, keys[0], keys[1], group.mask)
        out = out.view(num_samples, num_kv_heads, -1, length, head_dim).permute(0, 3, 1, 2, 4)
        places = out.reshape(num_samples * length, num_heads, head_dim)
        return _gather(places, group.places, group.padded_rows)


def pack_attention(
    num_prefix: int,
    lengths: Sequence[int],
    num_rows: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
    *,
    without_prefix: Set[int] = frozenset(),
) -> PackedAttention:
    """Lay out attention for samples of ``lengths`` rows each, after ``num_prefix`` shared rows.

    Args:
        num_prefix: Rows of the prefix that samples begin with.
        lengths: Rows of each sample after the prefix, in row order.
        num_rows: All rows; those after the last sample attend to nothing and come out zero.
        window: Sliding-window width of the layers; ``None`` attends to everything before.
        dtype: Compute dtype, which the masks are in.
        device: Where the rows are.
        without_prefix: Indices of samples that do not begin with the prefix.
    """
    groups = []
    if num_prefix:
        groups.append(_make_group([0], [num_prefix], 0, num_rows, window, dtype, device))
    spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
    start = num_prefix
    for index, length in enumerate(lengths):
        width = max(16, 1 << (length - 1).bit_length())
        prefix = 0 if index in without_prefix else num_prefix
        spans.setdefault((width, prefix), []).append((start, length))
        start += length
    for (_, prefix), group in spans.items():
        starts, group_lengths = zip(*group, strict=True)
        groups.append(_make_group(starts, group_lengths, prefix, num_rows, window, dtype, device))
    return PackedAttention(num_prefix, tuple(groups))


def attention_to_earlier(
    rows: range, window: int | None, dtype: torch.dtype, device: torch.device
) -> PackedAttention:
    """Lay out attention of some rows of one sample to themselves and to all rows before them.

    Arguments as those of ``pack_attention``. Queries of earlier rows come out zero.
    """
    group = _make_group([rows.start], [len(rows)], rows.start, rows.stop, window, dtype, device)
    return PackedAttention(rows.start, (group,))


def _make_group(
    starts: Sequence[int],
    lengths: Sequence[int],
    num_prefix: int,
    num_rows: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> AttentionGroup:
    length = -(-max(lengths) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
    offsets = torch.arange(length, device=device)
    rows = torch.tensor(starts, device=device).unsqueeze(1) + offsets
    is_real = offsets < torch.tensor(lengths, device=device).unsqueeze(1)
    padded_rows = torch.where(is_real, rows, num_rows).flatten()
    places = torch.full((num_rows + 1,), len(padded_rows), device=device)
    places[padded_rows] = torch.arange(len(padded_rows), device=device)
    queries = (num_prefix + offsets).unsqueeze(1)
    key_positions = torch.arange(num_prefix + length, device=device)
    visible = key_positions <= queries
    if window is not None:
        visible &= key_positions > queries - window
    mask = queries.new_zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf)
    return AttentionGroup(len(starts), padded_rows, places[:num_rows], mask)


def _masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attend q [samples, kv_heads, group * length, head_dim] to k, v [samples, kv_heads, keys, …].

    Query heads that share a key head follow one another, so the mask repeats for each.
    """
    num_samples, num_kv_heads, num_queries, head_dim = q.shape
    mask = mask.repeat(num_queries // mask.shape[0], 1)
    if mask.shape[1] >= _FUSED_FROM:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    q, k, v = (t.reshape(num_samples * num_kv_heads, -1, head_dim) for t in (q, k, v))
    scores = torch.baddbmm(mask.expand(len(q), -1, -1), q, k.transpose(1, 2), alpha=head_dim**-0.5)
    return torch.bmm(scores.softmax(dim=-1), v)


def _gather(x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
    """Return rows of ``x`` by index, where an index one past the end gives zeros."""
    rows: Tensor = _Gather.apply(x, index, inverse)  # type: ignore[no-untyped-call]
    return rows


class _Gather(Function):
    """``_gather``, differentiable.

    Each row is taken at most once, so the gradient is a gather by the inverse index: much cheaper
    than the scatter-add that autograd would use for ``index_select``.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.inverse = inverse
        return _take_rows(x, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _take_rows(grads[0], ctx.inverse), None, None


def _take_rows(x: Tensor, index: Tensor) -> Tensor:
    return torch.cat((x, x.new_zeros(1, *x.shape[1:]))).index_select(0, index)
