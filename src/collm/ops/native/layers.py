"""All decoder layers of a serving step in one call of the kernels.

The structures mirror those of ``layers.h``, field for field. They hold addresses: whoever makes one
keeps the tensors behind them.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from collm.ops.native.library import address, kernels
from collm.ops.native.linears import Packed, bank_addresses, part_ends

_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p


class LinearFields(ctypes.Structure):
    """One linear layer and the adapter factors of all slots."""

    _fields_ = (
        ("format", _INT),
        ("in_features", _INT),
        ("out_features", _INT),
        ("rank", _INT),
        ("data", _POINTER),
        ("bias", _POINTER),
        ("bank_a", _POINTER),
        ("bank_b", _POINTER),
        ("ranks", _POINTER),
        ("num_parts", _INT),
        ("part_ends", _INT * 3),
    )


class LayerFields(ctypes.Structure):
    """One decoder layer and its cache."""

    _fields_ = (
        ("attention_norm", _POINTER),
        ("mlp_norm", _POINTER),
        ("q_norm", _POINTER),
        ("k_norm", _POINTER),
        ("qkv", LinearFields),
        ("o", LinearFields),
        ("gate_up", LinearFields),
        ("down", LinearFields),
        ("cache", _POINTER),
        ("plan", _INT),
    )


class SpanFields(ctypes.Structure):
    """A chunk of several tokens of one sequence."""

    _fields_ = (("start", _INT), ("stop", _INT), ("context", _INT), ("blocks", _POINTER))


class PlanFields(ctypes.Structure):
    """Where the rows find their keys, in layers of one window."""

    _fields_ = (
        ("window", _INT),
        ("num_decode", _INT),
        ("max_blocks", _INT),
        ("num_spans", _INT),
        ("decode_blocks", _POINTER),
        ("decode_lengths", _POINTER),
        ("spans", ctypes.POINTER(SpanFields)),
    )


class StepFields(ctypes.Structure):
    """The rows of one step, and the sizes of the model."""

    _fields_ = (
        ("rows", _INT),
        ("hidden", _INT),
        ("heads", _INT),
        ("kv_heads", _INT),
        ("head_dim", _INT),
        ("block_size", _INT),
        ("num_layers", _INT),
        ("x", _POINTER),
        ("cos", _POINTER),
        ("sin", _POINTER),
        ("cache_rows", _POINTER),
        ("slots", _POINTER),
        ("plans", ctypes.POINTER(PlanFields)),
        ("eps", ctypes.c_double),
    )


def linear_fields(
    weight: Packed,
    bias: Tensor | None,
    bank_a: Tensor,
    bank_b: Tensor,
    ranks: Tensor,
    part_sizes: Sequence[int],
) -> LinearFields:
    """Return the fields of a linear; shapes as those of ``linears.linear``."""
    ends = part_ends(part_sizes, weight.out_features)
    factors = bank_addresses(weight, bank_a, bank_b, ranks, len(ends))
    return LinearFields(
        weight.format,
        weight.in_features,
        weight.out_features,
        bank_a.shape[1],
        weight.data.data_ptr(),
        address(bias, torch.bfloat16, weight.out_features),
        *factors,
        len(ends),
        (_INT * 3)(*ends),
    )


def run_layers(layers: "ctypes.Array[LayerFields]", step: StepFields) -> None:
    """Run ``layers`` over the rows of ``step``: changes ``x`` and the caches."""
    kernels().run_layers(
        ctypes.addressof(layers),
        ctypes.addressof(step),
        torch.get_num_threads(),
    )
