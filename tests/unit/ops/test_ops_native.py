"""This project's own kernels against plain torch in double precision."""

import pytest
import torch
from torch.testing import assert_close

from collm.ops.elementwise import rms_norm, silu_mul
from collm.ops.linear import DenseLinear, NativeLinear, freeze_linear
from collm.ops.lora import AdapterRows, adapted_linear, add_lora_reference, reserve_factors
from collm.ops.native.linears import input_grad, pack_bfloat16
from collm.ops.rotary import RotaryTable, rotate
from factories.kernels import PATHS, computing_on, needs_kernels, slot_factors

pytestmark = needs_kernels


@pytest.fixture(params=PATHS, autouse=True)
def path(request):
    """Compute each test on every path that this CPU has."""
    with computing_on(request.param) as chosen:
        yield chosen


ROUNDED = {"atol": 2e-2, "rtol": 1e-2, "check_dtype": False}
"""Results are rounded to bfloat16's 8 bits."""


def randn(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).bfloat16()


def test_packed_weights_are_the_weights():
    weight = randn(96, 64)
    assert torch.equal(input_grad(torch.eye(96).bfloat16(), pack_bfloat16(weight)), weight)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 32, 33, 40, 47, 48])
@pytest.mark.parametrize(("out_features", "in_features"), [(96, 64), (32, 608), (64, 96)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_equals_the_plain_one(num_rows, out_features, in_features, has_bias):
    weight, bias = randn(out_features, in_features, scale=0.1), randn(out_features, seed=1)
    x, dy = randn(num_rows, in_features, seed=2), randn(num_rows, out_features, seed=3)
    linear = NativeLinear(pack_bfloat16(weight), bias if has_bias else None)
    plain = DenseLinear(weight.double(), bias.double() if has_bias else None)
    assert_close(linear.forward(x), plain.forward(x.double()), **ROUNDED)
    assert_close(linear.input_grad(dy), plain.input_grad(dy.double()), **ROUNDED)
    assert linear.num_bytes == out_features * in_features * 2


def test_linear_takes_inputs_that_are_not_contiguous():
    linear, x = NativeLinear(pack_bfloat16(randn(64, 32))), randn(6, 64, seed=1)
    assert torch.equal(linear.forward(x[:, :32]), linear.forward(x[:, :32].contiguous()))


@pytest.mark.parametrize(("out_features", "in_features"), [(64, 4160), (4160, 64)])
def test_more_rows_of_wide_layers_than_a_cache_holds_are_taken_in_parts(out_features, in_features):
    weight, num_rows = randn(out_features, in_features, scale=0.1), 389
    x, dy = randn(num_rows, in_features, seed=2), randn(num_rows, out_features, seed=3)
    linear = NativeLinear(pack_bfloat16(weight))
    assert_close(linear.forward(x), x.float() @ weight.float().T, **ROUNDED)
    assert_close(linear.input_grad(dy), dy.float() @ weight.float(), **ROUNDED)


@pytest.mark.parametrize("num_rows", [12, 40, 300])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_is_no_number_spoils_no_other(num_rows, value):
    weight, x = randn(96, 64, scale=0.1), randn(num_rows, 64, seed=2)
    linear = NativeLinear(pack_bfloat16(weight))
    clean, clean_grad = linear.forward(x), linear.input_grad(randn(num_rows, 96, seed=3))
    x[7, 5] = value
    dy = randn(num_rows, 96, seed=3)
    dy[7, 5] = value
    for found, usual in ((linear.forward(x), clean), (linear.input_grad(dy), clean_grad)):
        assert not found[7].isfinite().any()
        found[7] = usual[7]
        assert torch.equal(found, usual)


@pytest.mark.parametrize("num_rows", [1, 5, 32, 70])
@pytest.mark.parametrize("rank", [1, 5, 20])
@pytest.mark.parametrize("rows_each", [2, 21])
def test_rows_of_different_adapters_share_a_product(num_rows, rank, rows_each):
    linear = NativeLinear(pack_bfloat16(randn(64, 96, scale=0.1)))
    bank_a, bank_b = randn(3, rank, 96, seed=1, scale=0.1), randn(3, rank, 64, seed=2, scale=0.1)
    slots = [(row // rows_each) % 4 - 1 for row in range(num_rows)]
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


@pytest.mark.parametrize("rank", [1, 3])
def test_an_adapter_of_odd_rank_takes_nothing_of_the_next_row(rank):
    linear = NativeLinear(pack_bfloat16(randn(64, 96, scale=0.1)))
    bank_a, bank_b = randn(1, rank, 96, seed=1, scale=0.1), randn(1, rank, 64, seed=2, scale=0.1)
    rows = AdapterRows([(0, 2, 0)], torch.zeros(2, dtype=torch.int32))
    x = randn(2, 96, seed=3)
    x[1] = torch.nan
    out = adapted_linear(linear, x, rows, slot_factors(bank_a, bank_b))
    assert out[0].isfinite().all()
    assert out[1].isnan().all()


@pytest.mark.parametrize("num_rows", [6, 40])
def test_an_adapter_of_lower_rank_than_its_slot_is_read_as_far_as_it_goes(num_rows):
    """What a slot held before is still there behind it: no numbers, which would show."""
    linear, x = NativeLinear(pack_bfloat16(randn(96, 64, scale=0.1))), randn(num_rows, 64, seed=9)
    factors = reserve_factors(3, 8, 64, (32, 64), x.new_zeros)
    slots = torch.tensor([row * 3 // num_rows for row in range(num_rows)], dtype=torch.int32)
    expected = linear.forward(x).double()
    for slot, rank in enumerate((3, 8, 1)):
        factors.load(slot, x.new_full((2, 8, 64), torch.nan), x.new_full((8, 96), torch.nan))
        a, b = randn(2, rank, 64, seed=slot, scale=0.1), randn(rank, 96, seed=slot, scale=0.1)
        factors.load(slot, a, b)
        mine, (first, second) = slots == slot, (x.double() @ part.double().T for part in a)
        parts = first @ b[:, :32].double(), second @ b[:, 32:].double()
        expected[mine] += torch.cat(parts, dim=1)[mine]
    segments = [(row, row + 1, slot) for row, slot in enumerate(slots.tolist())]
    out = adapted_linear(linear, x, AdapterRows(segments, slots), factors)
    assert_close(out, expected, **ROUNDED)


def test_a_row_does_not_depend_on_its_batch_mates():
    linear, x = NativeLinear(pack_bfloat16(randn(64, 96))), randn(40, 96, seed=1)
    whole = linear.forward(x)
    for first, last in ((0, 1), (3, 8), (5, 18)):
        assert_close(linear.forward(x[first:last]), whole[first:last], **ROUNDED)


def test_rotation_equals_the_plain_one():
    table = RotaryTable(
        torch.rand(32, generator=torch.Generator().manual_seed(0)), 1.0, 99, torch.bfloat16
    )
    x = randn(50, 5, 64)[:, 1:4]
    cos, sin = table.rows(torch.arange(7, 57))
    with torch.no_grad():
        out = rotate(x, cos, sin)
    wide = x.double()
    plain = wide * cos.double() + wide.roll(32, -1) * sin.double()
    assert_close(out, plain, **ROUNDED)


@pytest.mark.parametrize("shape", [(1, 64), (7, 3, 32), (700, 96)])
def test_norm_equals_the_plain_one(shape):
    x, weight = randn(*shape), randn(shape[-1], seed=1)
    with torch.no_grad():
        out = rms_norm(x, weight, 1e-5)
    expected = torch.nn.functional.rms_norm(x.double(), weight.shape, weight.double(), 1e-5)
    assert_close(out, expected, **ROUNDED)


@pytest.mark.parametrize("num_rows", [1, 3, 600])
def test_gated_activation_equals_the_plain_one(num_rows):
    gate_up = randn(num_rows, 128, scale=4.0)
    gate_up[0, :4] = torch.tensor([-200.0, -90.0, 90.0, 200.0]).bfloat16()
    with torch.no_grad():
        out = silu_mul(gate_up)
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_close(out, torch.nn.functional.silu(gate) * up, **ROUNDED)


@pytest.mark.parametrize("shape", [(1, 64), (7, 3, 32), (700, 96)])
def test_gradient_of_the_norm_equals_the_plain_one(shape):
    x, weight = randn(*shape).requires_grad_(), randn(shape[-1], seed=1)
    dy, wide = randn(*shape, seed=2), x.detach().double().requires_grad_()
    (dx,) = torch.autograd.grad(rms_norm(x, weight, 1e-5), x, dy)
    plain = torch.nn.functional.rms_norm(wide, weight.shape, weight.double(), 1e-5)
    (expected,) = torch.autograd.grad(plain, wide, dy.double())
    assert_close(dx, expected, **ROUNDED)


@pytest.mark.parametrize("num_rows", [1, 3, 600])
def test_gradient_of_the_gated_activation_equals_the_plain_one(num_rows):
    gate_up, dy = randn(num_rows, 128, scale=2.0).requires_grad_(), randn(num_rows, 64, seed=2)
    wide = gate_up.detach().double().requires_grad_()
    (d_gate_up,) = torch.autograd.grad(silu_mul(gate_up), gate_up, dy)
    gate, up = wide.chunk(2, dim=-1)
    (expected,) = torch.autograd.grad(torch.nn.functional.silu(gate) * up, wide, dy.double())
    assert_close(d_gate_up, expected, **ROUNDED)


def test_gradient_of_a_rotation_turns_back():
    x, dy = randn(9, 3, 64).requires_grad_(), randn(9, 3, 64, seed=1)
    inv_freq = torch.rand(32, generator=torch.Generator().manual_seed(0))
    cos, sin = RotaryTable(inv_freq, 1.0, 9, torch.bfloat16).rows(torch.arange(9))
    wide = x.detach().double().requires_grad_()
    (dx,) = torch.autograd.grad(rotate(x, cos, sin), x, dy)
    plain = wide * cos.double() + wide.roll(32, -1) * sin.double()
    (expected,) = torch.autograd.grad(plain, wide, dy.double())
    assert_close(dx, expected, **ROUNDED)


def test_only_bfloat16_of_whole_blocks_takes_the_kernels():
    assert isinstance(freeze_linear(randn(64, 32)), NativeLinear)
    assert not isinstance(freeze_linear(randn(48, 32)), NativeLinear)
    assert isinstance(freeze_linear(randn(64, 32).float()), DenseLinear)
