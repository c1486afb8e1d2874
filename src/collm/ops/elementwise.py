"""Norm and gated activation, each a kernel where no gradient is wanted and torch elsewhere."""

from torch import Tensor
from torch.nn import functional

from collm.ops.native import library as native


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalize the last dimension by its root mean square.

    Source: arXiv 1910.07467, equation 4.
    """
    if native.can_take(x):
        return native.rms_norm(x, weight, eps)
    return functional.rms_norm(x, weight.shape, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` for ``gate_up`` [num_tokens, 2 * width], gate first."""
    if native.can_take(gate_up):
        return native.silu_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Return ``gelu(gate) * up``, gelu by its tanh form; shapes as for ``silu_mul``."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh") * up
