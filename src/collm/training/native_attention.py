"""Attention inside packed micro-batches by the compiled kernels: no padding, masks or gathers."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from collm.ops.native.training_attention import (
    Spans,
    training_attention,
    training_attention_back,
)


@dataclass(frozen=True, slots=True)
class NativeAttention:
    """Which rows of a micro-batch attend to which, as ``PackedAttention`` has it."""

    spans: Spans

    def attend(self, q: Tensor, kv: Tensor) -> Tensor:
        """Return outputs [num_rows, num_heads * head_dim]; see ``model.layers.Attend``."""
        out: Tensor = _Attention.apply(q, kv, self.spans)  # type: ignore[no-untyped-call]
        return out.flatten(1)


def span_attention(
    num_prefix: int, lengths: Sequence[int], window: int | None, *, without_prefix: Set[int]
) -> NativeAttention:
    """Lay out attention; the arguments are those of ``training.attention.pack_attention``."""
    starts, sizes, prefixes = [], [], []
    if num_prefix:
        starts, sizes, prefixes = [0], [num_prefix], [0]
    start = num_prefix
    for index, length in enumerate(lengths):
        starts.append(start)
        sizes.append(length)
        prefixes.append(0 if index in without_prefix else num_prefix)
        start += length
    return NativeAttention(
        Spans(torch.tensor(starts), torch.tensor(sizes), torch.tensor(prefixes), window)
    )


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, spans: Spans) -> Tensor:
        out, log_sums = training_attention(q, kv, spans)
        ctx.save_for_backward(q, kv, out, log_sums)
        ctx.spans = spans
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        q, kv, out, log_sums = ctx.saved_tensors
        return *training_attention_back(q, kv, ctx.spans, out, log_sums, grads[0]), None
