"""Rotary position embedding, half-split layout (as Llama and its relatives use it)."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from collm.ops.native import elementwise as native
from collm.ops.native.library import can_take


class RotaryTable:
    """Cosines and signed sines of every position, so that a rotation is three cheap operations.

    Rotating ``x`` by half its width and multiplying by a sine whose first half is negative equals
    the usual ``cat(-x2, x1) * sin``.

    Source: RoFormer, arXiv 2104.09864, section 3.4.2.
    """

    def __init__(
        self,
        inv_freq: Tensor,
        scaling: float,
        max_position: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        """Tabulate ``inv_freq`` [head_dim / 2] for ``max_position`` positions in ``dtype``.

        The table lies on ``device``, or else where ``inv_freq`` is.
        """
        angles = torch.outer(torch.arange(max_position, dtype=torch.float32), inv_freq.float())
        cos, sin = angles.cos() * scaling, angles.sin() * scaling
        self._cos = torch.cat((cos, cos), dim=-1).to(device, dtype)
        self._sin = torch.cat((-sin, sin), dim=-1).to(device, dtype)

    def rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return (cos, sin), each [num_tokens, 1, head_dim], for ``positions`` [num_tokens]."""
        return (
            self._cos.index_select(0, positions).unsqueeze(1),
            self._sin.index_select(0, positions).unsqueeze(1),
        )


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return ``x`` [num_tokens, num_heads, head_dim] rotated by rows of a ``RotaryTable``."""
    if can_take(x):
        if torch.is_grad_enabled():
            y: Tensor = _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]
            return y
        return native.rotate(x, cos, sin)
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class _Rotate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return native.rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return native.rotate(grads[0], cos, sin, turn=-1.0), None, None
