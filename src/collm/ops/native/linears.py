"""Packed linear layers: the kernels as functions on tensors."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate

import torch
from torch import Tensor

from collm.ops.native.library import COLUMNS, address, kernels

GROUP = 32
"""Inputs of an output that share a scale in the int4 format."""


class Format(IntEnum):
    """How packed weights are stored; ``linear.h`` says byte for byte."""

    BFLOAT16 = 0
    INT8 = 1
    INT4 = 2


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight [out_features, in_features] as the kernels read it, in blocks of 32 outputs."""

    format: Format
    data: Tensor
    out_features: int
    in_features: int

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        return self.data.numel() * self.data.element_size()


def pack_bfloat16(weight: Tensor) -> Packed:
    """Pack ``weight`` [out_features, in_features], bfloat16, both multiples of 32."""
    out_features, in_features = weight.shape
    pairs = weight.contiguous().view(torch.int32)
    blocks = pairs.view(out_features // COLUMNS, COLUMNS, in_features // 2)
    data = blocks.permute(0, 2, 1).contiguous()
    return Packed(Format.BFLOAT16, data, out_features, in_features)


def pack_int8(codes: Tensor, scales: Tensor) -> Packed:
    """Pack a weight ``codes * scales``.

    Args:
        codes: [out_features, in_features], int8; both sizes multiples of 32.
        scales: Of each output [out_features], float32.
    """
    out_features, in_features = codes.shape
    num_blocks = out_features // COLUMNS
    fours = codes.contiguous().view(torch.int32).view(num_blocks, COLUMNS, in_features // 4)
    unsigned = fours.permute(0, 2, 1).contiguous().view(torch.uint8) ^ 0x80
    heads = scales.contiguous().view(torch.uint8).view(num_blocks, -1)
    data = torch.cat((heads, unsigned.view(num_blocks, -1)), dim=1)
    return Packed(Format.INT8, data, out_features, in_features)


def pack_int4(codes: Tensor, scales: Tensor, least: Tensor) -> Packed:
    """Pack a weight ``codes * scales + least``, the latter two of each group of 32 inputs.

    Args:
        codes: From 0 to 15 [out_features, in_features], uint8; both sizes multiples of 32.
        scales: [out_features, in_features / 32], bfloat16.
        least: [out_features, in_features / 32], bfloat16.
    """
    out_features, in_features = codes.shape
    num_blocks, num_groups = out_features // COLUMNS, in_features // GROUP
    # An output is (block, half, column), an input (group, eighth, nibble, byte of a word).
    split = codes.reshape(num_blocks, 2, 16, num_groups, 4, 2, 4).permute(0, 3, 1, 4, 2, 6, 5)
    halves = split[..., 0] | (split[..., 1] << 4)
    parts = [
        values.reshape(num_blocks, COLUMNS, num_groups).transpose(1, 2).contiguous()
        for values in (scales, least)
    ]
    heads = [part.view(torch.uint8).view(num_blocks, num_groups, -1) for part in parts]
    data = torch.cat((*heads, halves.reshape(num_blocks, num_groups, -1)), dim=2)
    return Packed(Format.INT4, data, out_features, in_features)


def linear(
    x: Tensor,
    weight: Packed,
    bias: Tensor | None,
    slots: Tensor | None = None,
    bank_a: Tensor | None = None,
    bank_b: Tensor | None = None,
    ranks: Tensor | None = None,
    part_sizes: Sequence[int] = (),
) -> Tensor:
    """Return ``x Wᵀ + b``, plus each row's adapter output.

    Integer weights meet inputs that are rounded to eight bits for the product: with one scale for
    each row of ``x``, or with int4 one for each row and group of inputs; adapters meet ``x``.

    Args:
        x: [num_tokens, in_features], bfloat16.
        weight: W.
        bias: [out_features], or ``None``.
        slots: Adapter slot of each row [num_tokens], int32, -1 for none; ``None``: no adapters.
        bank_a: A of all slots [num_slots, rank, in_features], bfloat16.
        bank_b: Bᵀ of all slots in blocks, as ``block_factors`` returns one, bfloat16.
        ranks: Of what each slot holds, for every part [num_slots], int32; it lies at the beginning
            of its slot, as if that had room for no more.
        part_sizes: Outputs of the parts that are fused, each with its own share of the ranks.
    """
    x = x.contiguous()
    ends = part_ends(part_sizes, weight.out_features)
    y = x.new_empty(x.shape[0], weight.out_features)
    kernels().linear(
        weight.format,
        address(x, torch.bfloat16, len(x), weight.in_features),
        weight.data.data_ptr(),
        address(bias, torch.bfloat16, weight.out_features),
        y.data_ptr(),
        x.shape[0],
        weight.in_features,
        weight.out_features,
        address(slots, torch.int32, len(x)),
        *bank_addresses(weight, bank_a, bank_b, ranks, len(ends)),
        0 if bank_a is None else bank_a.shape[1],
        ends,
        len(ends),
        torch.get_num_threads(),
    )
    return y


def block_factors(b: Tensor) -> Tensor:
    """Return Bᵀ [rank, out_features] as the kernels read it: [out_features / 32, rank, 32]."""
    rank, out_features = b.shape
    return b.view(rank, out_features // COLUMNS, COLUMNS).transpose(0, 1)


def bank_addresses(
    weight: Packed,
    bank_a: Tensor | None,
    bank_b: Tensor | None,
    ranks: Tensor | None,
    num_parts: int,
) -> tuple[int | None, int | None, int | None]:
    """Return where all slots' factors and ranks are, as ``linear`` takes them; null if none.

    Raises:
        ValueError: They do not fit the weight, or one another.
    """
    if bank_a is None or bank_b is None or ranks is None:
        return None, None, None
    num_slots, rank = bank_a.shape[:2]
    blocks = (weight.out_features // COLUMNS, rank // num_parts, COLUMNS)
    return (
        address(bank_a, torch.bfloat16, num_slots, rank, weight.in_features),
        address(bank_b, torch.bfloat16, num_slots, *blocks),
        address(ranks, torch.int32, num_slots),
    )


def part_ends(part_sizes: Sequence[int], out_features: int) -> "ctypes.Array[ctypes.c_int64]":
    """Return where the outputs of each part end; of no parts, nothing.

    Raises:
        ValueError: The parts are not all of the outputs.
    """
    ends = list(accumulate(part_sizes))
    if ends and ends[-1] != out_features:
        raise ValueError(f"parts of {list(part_sizes)} outputs make {ends[-1]}, not {out_features}")
    return (ctypes.c_int64 * len(ends))(*ends)


def input_grad(dy: Tensor, weight: Packed) -> Tensor:
    """Return ``dy W`` [num_tokens, in_features]; nothing of W but its packed form is needed.

    Integer weights are rounded to bfloat16 for the product.

    Args:
        dy: [num_tokens, out_features], bfloat16.
        weight: W.
    """
    dy = dy.contiguous()
    dx = dy.new_empty(dy.shape[0], weight.in_features)
    kernels().input_grad(
        weight.format,
        address(dy, torch.bfloat16, len(dy), weight.out_features),
        weight.data.data_ptr(),
        dx.data_ptr(),
        dy.shape[0],
        weight.in_features,
        weight.out_features,
        torch.get_num_threads(),
    )
    return dx
