"""Norm and gated activation, each a kernel with its gradient where one is there, else torch."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from collm.ops.native import elementwise as native
from collm.ops.native.library import can_take


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalize the last dimension by its root mean square; ``weight`` is frozen.

    Source: arXiv 1910.07467, equation 4.
    """
    if can_take(x):
        if torch.is_grad_enabled():
            y: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
            return y
        return native.rms_norm(x, weight, eps)
    return functional.rms_norm(x, weight.shape, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` for ``gate_up`` [num_tokens, 2 * width], gate first."""
    if can_take(gate_up):
        if torch.is_grad_enabled():
            y: Tensor = _SiluMul.apply(gate_up)  # type: ignore[no-untyped-call]
            return y
        return native.silu_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Return ``gelu(gate) * up``, gelu by its tanh form; shapes as for ``silu_mul``."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh") * up


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return native.rms_norm(x, weight, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        return native.rms_norm_back(grads[0], x, weight, ctx.eps), None, None


class _SiluMul(Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return native.silu_mul(gate_up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        return native.silu_mul_back(grads[0], gate_up)
