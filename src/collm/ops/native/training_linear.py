"""Linear layers with one adapter for all rows, and their gradients: functions on tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from collm.ops.native.library import COLUMNS, address, kernels
from collm.ops.native.linears import Packed, part_ends


def can_adapt(rank: int, part_sizes: Sequence[int]) -> bool:
    """Return whether the kernels take an adapter of ``rank`` in all on outputs of these parts."""
    is_even = rank % (2 * len(part_sizes)) == 0
    return is_even and all(size % COLUMNS == 0 for size in part_sizes)


def adapted(
    x: Tensor, weight: Packed, bias: Tensor | None, a: Tensor, b: Tensor, part_sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return ``x Wᵀ + bias + t Bᵀ`` and t = ``x Aᵀ`` [num_tokens, rank].

    Args:
        x: [num_tokens, in_features], bfloat16.
        weight: W.
        bias: [out_features], or ``None``.
        a: A [rank, in_features], bfloat16.
        b: Bᵀ [rank, out_features], bfloat16.
        part_sizes: Outputs of the parts that are fused. Each has its own share of the ranks, and B
            is zero elsewhere.
    """
    x = x.contiguous()
    y, t = x.new_empty(x.shape[0], weight.out_features), x.new_empty(x.shape[0], a.shape[0])
    ends = part_ends(part_sizes, weight.out_features)
    kernels().adapted(
        weight.format,
        address(x, torch.bfloat16, len(x), weight.in_features),
        weight.data.data_ptr(),
        address(bias, torch.bfloat16, weight.out_features),
        y.data_ptr(),
        x.shape[0],
        weight.in_features,
        weight.out_features,
        address(a, torch.bfloat16, len(a), weight.in_features),
        address(b, torch.bfloat16, len(a), weight.out_features),
        a.shape[0],
        ends,
        len(ends),
        t.data_ptr(),
        torch.get_num_threads(),
    )
    return y, t


def adapted_back(
    x: Tensor,
    t: Tensor,
    dy: Tensor,
    weight: Packed,
    a: Tensor,
    b: Tensor,
    part_sizes: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``adapted`` by x, A and B, for that of its output.

    Args:
        x: As ``adapted`` was given it.
        t: What it returned.
        dy: [num_tokens, out_features], bfloat16.
        weight: W, as are the rest what ``adapted`` was given.
        a: A.
        b: Bᵀ.
        part_sizes: Outputs of the parts.

    Returns:
        dx [num_tokens, in_features], bfloat16; dA [rank, in_features] and dB
        [out_features, rank / num_parts] within each part's block, float32.
    """
    x, dy = x.contiguous(), dy.contiguous()
    ends = part_ends(part_sizes, weight.out_features)
    dx = torch.empty_like(x)
    grad_a = torch.empty(a.shape)
    grad_b = torch.empty(weight.out_features, a.shape[0] // len(ends))
    kernels().adapted_back(
        weight.format,
        address(x, torch.bfloat16, len(x), weight.in_features),
        address(t, torch.bfloat16, len(x), len(a)),
        address(dy, torch.bfloat16, len(x), weight.out_features),
        weight.data.data_ptr(),
        x.shape[0],
        weight.in_features,
        weight.out_features,
        address(a, torch.bfloat16, len(a), weight.in_features),
        address(b, torch.bfloat16, len(a), weight.out_features),
        a.shape[0],
        ends,
        len(ends),
        dx.data_ptr(),
        grad_a.data_ptr(),
        grad_b.data_ptr(),
        torch.get_num_threads(),
    )
    return dx, grad_a, grad_b
