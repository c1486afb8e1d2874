"""Frozen linear layers: weights written once, read by serving and by training."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from collm.ops.large_pages import LargePages
from collm.ops.native import linears as native
from collm.ops.native.library import COLUMNS, is_available
from collm.ops.quantized import Quantization, QuantizedLinear, can_quantize, quantize


class FrozenLinear(Protocol):
    """``y = x Wᵀ + b`` with weights that never change and take no gradient."""

    @property
    def num_bytes(self) -> int:
        """Bytes held by the weights."""
        ...

    def forward(self, x: Tensor) -> Tensor:
        """Return a new tensor [num_tokens, out_features] for ``x`` [num_tokens, in_features]."""
        ...

    def input_grad(self, dy: Tensor) -> Tensor:
        """Return ``dy W`` [num_tokens, in_features] for ``dy`` [num_tokens, out_features]."""
        ...


class DenseLinear:
    """Weights as torch lays them out; the reference for every other kind."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Hold ``weight`` [out_features, in_features] and ``bias`` [out_features]."""
        self._weight = weight
        self._bias = bias

    @property
    def num_bytes(self) -> int:
        """Bytes held by the weights."""
        return self._weight.numel() * self._weight.element_size()

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x Wᵀ + b``."""
        return functional.linear(x, self._weight, self._bias)

    def input_grad(self, dy: Tensor) -> Tensor:
        """Return ``dy W``."""
        return dy @ self._weight


class PackedLinear:
    """Weights in oneDNN's blocked layout: twice as fast as plain ones on few rows.

    The plain layout is not kept. The input gradient unpacks the layer for the duration of the call,
    which costs a few hundred microseconds against the tens of milliseconds of a training quantum.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Pack ``weight`` [out_features, in_features], bfloat16 on a CPU."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self._num_bytes = weight.numel() * weight.element_size()
        self._bias = bias

    @property
    def num_bytes(self) -> int:
        """Bytes held by the weights."""
        return self._num_bytes

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x Wᵀ + b``."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y

    def input_grad(self, dy: Tensor) -> Tensor:
        """Return ``dy W``."""
        weight: Tensor = self._packed.to_dense()
        return dy @ weight


class NativeLinear:
    """Weights as this project's own kernels (``ops.native``) read them: bfloat16 or quantized.

    The plain layout is not kept: the input gradient reads the packed one as well.
    """

    def __init__(self, weight: native.Packed, bias: Tensor | None = None) -> None:
        """Hold ``weight`` and ``bias`` [out_features], bfloat16."""
        self.packed = weight
        self.bias = bias

    @property
    def num_bytes(self) -> int:
        """Bytes held by the weights."""
        return self.packed.num_bytes

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x Wᵀ + b``."""
        return native.linear(x, self.packed, self.bias)

    def forward_adapted(
        self,
        x: Tensor,
        slots: Tensor,
        bank_a: Tensor,
        bank_b: Tensor,
        ranks: Tensor,
        part_sizes: Sequence[int],
    ) -> Tensor:
        """Return ``x Wᵀ + b`` plus each row's adapter output; see ``native.linear``."""
        return native.linear(x, self.packed, self.bias, slots, bank_a, bank_b, ranks, part_sizes)

    def input_grad(self, dy: Tensor) -> Tensor:
        """Return ``dy W``."""
        return native.input_grad(dy, self.packed)


def can_run_native(weight: Tensor) -> bool:
    """Return whether this project's own kernels take such a weight, here."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and all(size % COLUMNS == 0 for size in weight.shape)
        and is_available()
    )


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether this torch build and CPU run packed bfloat16 linears natively."""
    return (
        device.type == "cpu"
        and dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def freeze_linear(
    weight: Tensor,
    bias: Tensor | None = None,
    quantization: Quantization | None = None,
    pages: LargePages | None = None,
) -> FrozenLinear:
    """Return the fastest frozen linear for the weight's dtype and device.

    Args:
        weight: [out_features, in_features].
        bias: [out_features], or ``None``.
        quantization: What to round the weight to; one with a size that is no multiple of 32 stays
            as it is.
        pages: Where what our own kernels read is kept; ``None``: wherever there is room.
    """
    runs_native = can_run_native(weight)
    if quantization is not None and can_quantize(weight):
        rounded = quantize(weight, quantization)
        if not runs_native:
            return QuantizedLinear(rounded, bias)
        return NativeLinear(_kept(rounded.pack(), pages), bias)
    if runs_native:
        return NativeLinear(_kept(native.pack_bfloat16(weight), pages), bias)
    if can_pack(weight.dtype, weight.device):
        return PackedLinear(weight, bias)
    return DenseLinear(weight, bias)


def _kept(packed: native.Packed, pages: LargePages | None) -> native.Packed:
    return packed if pages is None else replace(packed, data=pages.copy(packed.data))
