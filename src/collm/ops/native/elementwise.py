"""Norm, gate and rotation: the kernels as functions on tensors."""

import torch
from torch import Tensor

from collm.ops.native.library import address, kernels, rows_together


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, turn: float = 1.0) -> Tensor:
    """Return ``x`` [num_tokens, num_heads, head_dim] rotated by rows of a ``RotaryTable``.

    A ``turn`` of -1 rotates back.
    """
    x = rows_together(x)
    y, rows = x.new_empty(x.shape), (x.shape[0], 1, x.shape[2])
    kernels().rotate(
        x.data_ptr(),
        x.stride(0),
        address(cos, torch.bfloat16, *rows),
        address(sin, torch.bfloat16, *rows),
        y.data_ptr(),
        *x.shape,
        turn,
        torch.get_num_threads(),
    )
    return y


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the root-mean-square norm over the last dimension of ``x`` […, width]."""
    x = x.contiguous()
    y = torch.empty_like(x)
    width = x.shape[-1]
    kernels().rms_norm(
        address(x, torch.bfloat16, *x.shape),
        address(weight, torch.bfloat16, width),
        y.data_ptr(),
        x.numel() // width,
        width,
        eps,
        torch.get_num_threads(),
    )
    return y


def rms_norm_back(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the gradient of ``rms_norm`` by ``x``, for the gradient ``dy`` of its output."""
    dy, x = dy.contiguous(), x.contiguous()
    dx = torch.empty_like(x)
    width = x.shape[-1]
    kernels().rms_norm_back(
        address(dy, torch.bfloat16, *x.shape),
        address(x, torch.bfloat16, *x.shape),
        address(weight, torch.bfloat16, width),
        dx.data_ptr(),
        x.numel() // width,
        width,
        eps,
        torch.get_num_threads(),
    )
    return dx


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` [num_tokens, width] of ``gate_up`` [num_tokens, 2 * width]."""
    gate_up = gate_up.contiguous()
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    y = gate_up.new_empty(num_tokens, width)
    kernels().silu_mul(
        address(gate_up, torch.bfloat16, num_tokens, 2 * width),
        y.data_ptr(),
        num_tokens,
        width,
        torch.get_num_threads(),
    )
    return y


def silu_mul_back(dy: Tensor, gate_up: Tensor) -> Tensor:
    """Return the gradient of ``silu_mul`` by ``gate_up``, for the gradient ``dy`` of its output."""
    dy, gate_up = dy.contiguous(), gate_up.contiguous()
    d_gate_up = torch.empty_like(gate_up)
    kernels().silu_mul_back(
        address(dy, torch.bfloat16, *dy.shape),
        address(gate_up, torch.bfloat16, dy.shape[0], 2 * dy.shape[1]),
        d_gate_up.data_ptr(),
        *dy.shape,
        torch.get_num_threads(),
    )
    return d_gate_up
