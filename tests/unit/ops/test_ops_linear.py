"""Frozen linears: the packed kind against the plain one."""

import pytest
import torch
from torch.testing import assert_close

from collm.ops.linear import DenseLinear, PackedLinear, can_pack, freeze_linear

CPU = torch.device("cpu")
needs_packing = pytest.mark.skipif(
    not can_pack(torch.bfloat16, CPU), reason="this CPU or torch build has no packed bfloat16"
)


def tensors(dtype: torch.dtype, num_rows: int = 5) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((48, 32), (48,), (num_rows, 32), (num_rows, 48))
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def test_dense_linear_is_a_linear_layer_and_its_gradient():
    weight, bias, x, dy = tensors(torch.float64)
    x.requires_grad_()
    y = torch.nn.functional.linear(x, weight, bias)
    y.backward(dy)
    linear = DenseLinear(weight, bias)
    assert_close(linear.forward(x), y)
    assert_close(linear.input_grad(dy), x.grad)
    assert linear.num_bytes == 48 * 32 * 8


@needs_packing
@pytest.mark.parametrize("num_rows", [0, 1, 5, 40])
@pytest.mark.parametrize("has_bias", [True, False])
def test_packed_linear_equals_the_plain_one(num_rows, has_bias):
    weight, bias, x, dy = tensors(torch.bfloat16, num_rows)
    packed = PackedLinear(weight, bias if has_bias else None)
    plain = DenseLinear(weight.double(), bias.double() if has_bias else None)
    # Results are rounded to 8 bits: 2^-8 of a sum of 32 products.
    tolerance = {"atol": 5e-2, "rtol": 1e-2, "check_dtype": False}
    assert_close(packed.forward(x), plain.forward(x.double()), **tolerance)
    assert_close(packed.input_grad(dy), plain.input_grad(dy.double()), **tolerance)
    assert packed.num_bytes == 48 * 32 * 2


@needs_packing
def test_packed_linear_takes_inputs_that_are_not_contiguous():
    weight, bias, x, _ = tensors(torch.bfloat16, 6)
    packed = PackedLinear(weight, bias)
    wide = torch.cat((x, x), dim=1)
    assert torch.equal(packed.forward(wide[:, :32]), packed.forward(x))
    assert torch.equal(packed.forward(x.T.contiguous().T), packed.forward(x))


def test_only_bfloat16_on_a_cpu_is_packed():
    weight, *_ = tensors(torch.float32)
    assert isinstance(freeze_linear(weight), DenseLinear)
    assert not can_pack(torch.bfloat16, torch.device("cuda"))
    kind = PackedLinear if can_pack(torch.bfloat16, CPU) else DenseLinear
    assert isinstance(freeze_linear(weight.bfloat16()), kind)
