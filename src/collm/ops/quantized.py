"""Frozen weights in 8 or 4 bits: how they are rounded, and what a linear layer of them computes.

Inputs are rounded to 8 bits as well, for the product with the weights alone: adapters meet them as
they are, and a gradient passes the rounding as if it were not there.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from collm.ops.native import linears as native
from collm.ops.native.library import COLUMNS

Quantization = Literal["int8", "int4"]

_LEVELS = 15
"""Steps between a group's least and its greatest weight in 4 bits."""
_ROWS_AT_ONCE = 4096
"""Outputs quantized at once, so that a vocabulary table is not copied to float32 as a whole."""


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """One scale for each output; the largest weight of an output is 127 of it."""

    codes: Tensor
    """[out_features, in_features], int8."""
    scales: Tensor
    """[out_features], float32."""

    input_group = None
    """Inputs that are rounded with one scale: all of a row."""

    def dequantized(self) -> Tensor:
        """Return the weight that the codes stand for [out_features, in_features], float32."""
        return self.codes.float() * self.scales.unsqueeze(1)

    def pack(self) -> native.Packed:
        """Return the weight as the kernels read it."""
        return native.pack_int8(self.codes, self.scales)


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A scale and a least value for each output and group of 32 inputs, as GGUF's Q4_1 has them.

    A model that was Q4_1 before gets its codes back exactly, since each group of it holds 0 and 15.
    """

    codes: Tensor
    """From 0 to 15 [out_features, in_features], uint8."""
    scales: Tensor
    """[out_features, in_features / 32], bfloat16."""
    least: Tensor
    """[out_features, in_features / 32], bfloat16."""

    input_group = native.GROUP
    """Inputs that are rounded with one scale."""

    def dequantized(self) -> Tensor:
        """Return the weight that the codes stand for [out_features, in_features], float32."""
        grouped = _grouped(self.codes, native.GROUP).float()
        scales, least = self.scales.unsqueeze(2).float(), self.least.unsqueeze(2).float()
        return torch.addcmul(least, grouped, scales).flatten(1)

    def pack(self) -> native.Packed:
        """Return the weight as the kernels read it."""
        return native.pack_int4(self.codes, self.scales, self.least)


QuantizedWeight = Int8Weight | Int4Weight


def can_quantize(weight: Tensor) -> bool:
    """Return whether a weight [out_features, in_features] has the sizes that quantizing needs."""
    return all(size % COLUMNS == 0 for size in weight.shape)


def quantize(weight: Tensor, to: Quantization) -> QuantizedWeight:
    """Round ``weight`` [out_features, in_features]; both sizes must be multiples of 32."""
    pieces = torch.split(weight, _ROWS_AT_ONCE)
    parts = [_quantize_rows(rows.float(), to) for rows in pieces]
    columns = [torch.cat(column) for column in zip(*parts, strict=True)]
    return Int8Weight(*columns) if to == "int8" else Int4Weight(*columns)


def round_inputs(x: Tensor, group: int | None) -> Tensor:
    """Return ``x`` [num_tokens, in_features] with each ``group`` rounded to 127 steps of its own.

    ``None`` takes each row as one group.
    """
    grouped = _grouped(x.float(), group or x.shape[1])
    magnitude = grouped.abs().amax(dim=2, keepdim=True)
    steps = torch.where(magnitude > 0, grouped * (127.0 / magnitude), 0.0).round()
    return (steps * (magnitude / 127.0)).flatten(1)


class QuantizedLinear:
    """``y = x Wᵀ + b`` of a quantized weight in plain torch, in float32: for any machine, and slow.

    It dequantizes the whole layer for each call; ``ops.linear.NativeLinear`` reads packed weights.
    """

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None = None) -> None:
        """Hold ``weight`` and ``bias`` [out_features]."""
        self._weight = weight
        self._bias = None if bias is None else bias.float()

    @property
    def num_bytes(self) -> int:
        """Bytes held by the weights."""
        weight = self._weight
        parts = [weight.codes, weight.scales]
        parts += [weight.least] if isinstance(weight, Int4Weight) else []
        return sum(part.numel() * part.element_size() for part in parts)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x Wᵀ + b``."""
        rounded = round_inputs(x, self._weight.input_group)
        return functional.linear(rounded, self._weight.dequantized(), self._bias).to(x.dtype)

    def input_grad(self, dy: Tensor) -> Tensor:
        """Return ``dy W``."""
        return (dy.float() @ self._weight.dequantized()).to(dy.dtype)


def _grouped(x: Tensor, size: int) -> Tensor:
    """Return ``x`` [rows, columns] as [rows, columns / size, size]."""
    return x.view(x.shape[0], x.shape[1] // size, size)


def _quantize_rows(rows: Tensor, to: Quantization) -> tuple[Tensor, ...]:
    if to == "int8":
        scales = rows.abs().amax(dim=1) / 127.0
        return _codes(rows, scales.unsqueeze(1), -127, 127).to(torch.int8), scales
    grouped = _grouped(rows, native.GROUP)
    least = grouped.amin(dim=2).bfloat16()
    scales = ((grouped.amax(dim=2) - least.float()) / _LEVELS).bfloat16()
    above = grouped - least.float().unsqueeze(2)
    codes = _codes(above, scales.float().unsqueeze(2), 0, _LEVELS)
    return codes.flatten(1).to(torch.uint8), scales, least


def _codes(values: Tensor, scales: Tensor, lowest: int, highest: int) -> Tensor:
    """Return ``values`` in steps of ``scales``; where those are zero, so is every value."""
    return torch.where(scales > 0, values / scales, 0.0).round_().clamp_(lowest, highest)
