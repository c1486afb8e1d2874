"""One decoder layer as two residual halves, the same code for serving and for training.

What differs is handed in: ``project`` applies a frozen linear and whatever adapters the caller
serves or trains, ``attend`` knows where earlier keys are.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from collm.model.spec import ModelSpec
from collm.model.weights import LayerWeights
from collm.ops.elementwise import gelu_tanh_mul, rms_norm, silu_mul
from collm.ops.rotary import rotate

Target = Literal["qkv", "o", "gate_up", "down"]
"""The four fused linears of a layer; query, key and value are one, gate and up are one."""

Project = Callable[[Target, Tensor], Tensor]
"""Maps [num_tokens, in_features] to [num_tokens, out_features] with adapters applied."""

Attend = Callable[[Tensor, Tensor], Tensor]
"""Maps rotated queries [num_tokens, num_heads, head_dim] and keys-values [num_tokens, 2,
num_kv_heads, head_dim] to [num_tokens, num_heads * head_dim]."""

Rotation = tuple[Tensor, Tensor]
"""(cos, sin) rows of the step's positions, each [num_tokens, 1, head_dim]."""


def attention_half(
    x: Tensor,
    layer: LayerWeights,
    spec: ModelSpec,
    rotation: Rotation,
    project: Project,
    attend: Attend,
) -> Tensor:
    """Return the residual stream [num_tokens, hidden_size] after a layer's attention."""
    num_heads, num_kv_heads = spec.num_heads, spec.num_kv_heads
    h = rms_norm(x, layer.attention_norm, spec.rms_norm_eps)
    qkv = project("qkv", h).view(x.shape[0], num_heads + 2 * num_kv_heads, spec.head_dim)
    qk, v = qkv[:, :-num_kv_heads], qkv[:, -num_kv_heads:]
    if layer.q_norm is not None and layer.k_norm is not None:
        q = rms_norm(qk[:, :num_heads], layer.q_norm, spec.rms_norm_eps)
        k = rms_norm(qk[:, num_heads:], layer.k_norm, spec.rms_norm_eps)
        qk = torch.cat((q, k), dim=1)
    qk = rotate(qk, *rotation)
    kv = torch.stack((qk[:, num_heads:], v), dim=1)
    return x + project("o", attend(qk[:, :num_heads], kv))


def mlp_half(x: Tensor, layer: LayerWeights, spec: ModelSpec, project: Project) -> Tensor:
    """Return the residual stream [num_tokens, hidden_size] after a layer's gated MLP."""
    h = rms_norm(x, layer.mlp_norm, spec.rms_norm_eps)
    gated_mul = silu_mul if spec.activation == "silu" else gelu_tanh_mul
    return x + project("down", gated_mul(project("gate_up", h)))
