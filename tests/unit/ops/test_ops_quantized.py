"""Quantized linears: rounding, the kernels against plain torch, and gradients through both."""

import gguf
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from collm.ops.linear import DenseLinear, NativeLinear, freeze_linear
from collm.ops.lora import AdapterRows, adapted_linear, add_lora_reference
from collm.ops.native import library
from collm.ops.quantized import QuantizedLinear, quantize, round_inputs
from factories.kernels import PATHS, computing_on, needs_kernels, slot_factors

KINDS = ["int8", "int4"]
ROUNDED = {"atol": 2e-2, "rtol": 1e-2, "check_dtype": False}
"""Results are rounded to bfloat16's 8 bits."""


@pytest.fixture(params=PATHS)
def path(request):
    """Compute a test on every path that this CPU has."""
    with computing_on(request.param) as chosen:
        yield chosen


def randn(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).bfloat16()


@pytest.mark.parametrize(("kind", "num_steps"), [("int8", 254), ("int4", 15)])
def test_rounded_weights_are_at_most_half_a_step_off(kind, num_steps):
    weight = randn(64, 96)
    error = (quantize(weight, kind).dequantized() - weight.float()).abs()
    if kind == "int8":
        step = weight.float().abs().amax(dim=1, keepdim=True) * 2 / num_steps
        assert (error <= step / 2 * 1.001).all()
    else:
        groups = weight.float().unflatten(1, (-1, 32))
        step = (groups.amax(dim=2) - groups.amin(dim=2)) / num_steps
        # Scale and least value are bfloat16 themselves.
        slack = groups.abs().amax(dim=2) * 2**-8
        assert (error.unflatten(1, (-1, 32)) <= (step / 2 + 2 * slack).unsqueeze(2)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_constant_and_zero_weights_are_kept(kind):
    weight = torch.zeros(32, 64)
    weight[1] = 0.5
    weight[2] = -2.0
    assert_close(quantize(weight, kind).dequantized(), weight, atol=0, rtol=1e-6)


def test_weights_that_were_4_bits_before_get_their_codes_back():
    # gguf's own Q4_1 is the independent reference.
    values = randn(32, 256, scale=0.1).float().numpy()
    blocks = gguf.quantize(values, gguf.GGMLQuantizationType.Q4_1)
    served = torch.from_numpy(gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q4_1)).bfloat16()
    quantized = quantize(served, "int4")
    # A block is its scale, its least value (float16 each), and 16 bytes: inputs 0 to 15 in the low
    # halves, 16 to 31 in the high ones.
    nibbles = blocks.reshape(32, 8, 20)[:, :, 4:]
    codes = np.concatenate((nibbles & 15, nibbles >> 4), axis=2).reshape(32, 256)
    assert torch.equal(quantized.codes, torch.from_numpy(codes))
    assert_close(quantized.dequantized(), served.float(), atol=4e-3, rtol=1e-2)


def test_inputs_are_rounded_by_row_or_by_group():
    x = torch.tensor([[1.27, 0.014, 0.3, 0.004], [0.0, 0.0, 0.0, 254.0]])
    by_row = torch.tensor([[1.27, 0.01, 0.3, 0.0], [0.0, 0.0, 0.0, 254.0]])
    assert_close(round_inputs(x, None), by_row)
    by_group = torch.tensor([[1.27, 0.01, 0.3, 2 * 0.3 / 127], [0.0, 0.0, 0.0, 254.0]])
    assert_close(round_inputs(x, 2), by_group)
    assert torch.equal(round_inputs(torch.zeros(2, 4), 2), torch.zeros(2, 4))


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_packed_weights_are_the_quantized_ones(kind, path):
    weight = quantize(randn(96, 64), kind)
    linear = NativeLinear(weight.pack())
    out = linear.input_grad(torch.eye(96).bfloat16())
    assert torch.equal(out, weight.dequantized().bfloat16())
    assert linear.num_bytes == (96 * 64 + 96 * 4 if kind == "int8" else 96 * 64 * 5 // 8)


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 40])
@pytest.mark.parametrize(("out_features", "in_features"), [(96, 64), (32, 608), (64, 96)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_equals_the_plain_one(kind, num_rows, out_features, in_features, has_bias, path):
    weight = quantize(randn(out_features, in_features, scale=0.1), kind)
    bias = randn(out_features, seed=1) if has_bias else None
    x, dy = randn(num_rows, in_features, seed=2), randn(num_rows, out_features, seed=3)
    linear, reference = NativeLinear(weight.pack(), bias), QuantizedLinear(weight, bias)
    assert_close(linear.forward(x), reference.forward(x), **ROUNDED)
    assert_close(linear.input_grad(dy), reference.input_grad(dy), **ROUNDED)
    # And neither is far from the product of numbers that were never rounded.
    plain = DenseLinear(weight.dequantized().double(), None if bias is None else bias.double())
    far = {"atol": 0.03 * in_features**0.5, "rtol": 0.05, "check_dtype": False}
    assert_close(linear.forward(x), plain.forward(x.double()), **far)


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_rows", [1, 5, 32, 33])
def test_rows_of_different_adapters_share_a_product(kind, num_rows, path):
    linear = NativeLinear(quantize(randn(64, 96, scale=0.1), kind).pack())
    bank_a, bank_b = randn(3, 20, 96, seed=1, scale=0.1), randn(3, 20, 64, seed=2, scale=0.1)
    slots = [(row // 2) % 4 - 1 for row in range(num_rows)]
    segments = [(row, row + 1, slot) for row, slot in enumerate(slots) if slot >= 0]
    rows = AdapterRows(segments, torch.tensor(slots, dtype=torch.int32))
    x = randn(num_rows, 96, seed=3)
    base = linear.forward(x)
    expected = add_lora_reference(
        base.double(), x.double(), rows.slots, bank_a.double(), bank_b.double()
    )
    out = adapted_linear(linear, x, rows, slot_factors(bank_a, bank_b))
    assert_close(out, expected, **ROUNDED)
    without = [row for row, slot in enumerate(slots) if slot < 0]
    assert torch.equal(out[without], base[without])


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_spoils_its_own_row_and_no_other(kind, value, path):
    linear, x = NativeLinear(quantize(randn(64, 96), kind).pack()), randn(12, 96, seed=1)
    clean = linear.forward(x)
    x[5, 40] = value
    out = linear.forward(x)
    assert not out[5].isfinite().any()
    others = [row for row in range(12) if row != 5]
    assert torch.equal(out[others], clean[others])


@needs_kernels
def test_gradient_of_many_outputs_is_summed_over_panels(path):
    weight = quantize(randn(8_224, 32, scale=0.1), "int4")
    dy = randn(9, 8_224, seed=1, scale=0.1)
    out = NativeLinear(weight.pack()).input_grad(dy)
    assert_close(out, QuantizedLinear(weight).input_grad(dy), **ROUNDED)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_odd_sizes_are_left_as_they_are(kind):
    assert isinstance(freeze_linear(torch.zeros(48, 64), None, kind), DenseLinear)
    assert isinstance(freeze_linear(torch.zeros(64, 64), None, kind), QuantizedLinear)
    on_kernels = NativeLinear if library.is_available() else QuantizedLinear
    assert isinstance(freeze_linear(randn(64, 64), None, kind), on_kernels)
