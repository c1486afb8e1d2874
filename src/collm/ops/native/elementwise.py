"""Norm, gate and rotation: the kernels as functions on tensors."""

import torch
from torch import Tensor

from collm.ops.native.library import address, kernels, rows_together


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, turn: float = 1.0) -> Tensor:
    """Return ``x`` [num_tokens, num_heads, head_dim] rotated by rows of a ``RotaryTable``.

    A ``turn`` of -1 rotates back.
    """
    x = rows_together(x)
    y = x.new_empty(x.shape)
    kernels().rotate(
        x.data_ptr(),
        x.stride(0),
        address(cos),
        address(sin),
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
        x.data_ptr(),
        weight.data_ptr(),
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
        dy.data_ptr(),
        x.data_ptr(),
        weight.data_ptr(),
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
    kernels().silu_mul(gate_up.data_ptr(), y.data_ptr(), num_tokens, width, torch.get_num_threads())
    return y


def silu_mul_back(dy: Tensor, gate_up: Tensor) -> Tensor:
    """Return the gradient of ``silu_mul`` by ``gate_up``, for the gradient ``dy`` of its output."""
    dy, gate_up = dy.contiguous(), gate_up.contiguous()
    d_gate_up = torch.empty_like(gate_up)
    kernels().silu_mul_back(
        dy.data_ptr(),
        gate_up.data_ptr(),
        d_gate_up.data_ptr(),
        *dy.shape,
        torch.get_num_threads(),
    )
    return d_gate_up
