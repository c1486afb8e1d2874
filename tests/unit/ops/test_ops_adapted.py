"""A linear with the adapter that is trained on it, against autograd in double precision."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from collm.ops.linear import NativeLinear, freeze_linear
from collm.ops.lora import Adapted
from collm.ops.native import library
from factories.kernels import PATHS, computing_on

ROUNDED = {"atol": 3e-2, "rtol": 2e-2, "check_dtype": False}
"""Outputs and projections are rounded to bfloat16's 8 bits; sums have up to a hundred of them."""
IN_FEATURES = 96


@pytest.fixture(params=[*PATHS, "torch"], autouse=True)
def path(request):
    """Compute each test on every path that this CPU has, and in torch."""
    with computing_on(request.param) as chosen:
        yield chosen


def randn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).bfloat16()


def block_diagonal(part_sizes: list[int], rank: int) -> Tensor:
    """Bᵀ with a block of ``rank`` rows for each part."""
    blocks = [randn(rank, size, seed=9 + i, scale=0.1) for i, size in enumerate(part_sizes)]
    return torch.block_diag(*blocks)


@pytest.mark.parametrize("num_rows", [1, 5, 40, 130])
@pytest.mark.parametrize(
    ("part_sizes", "rank"),
    # The last has more ranks than outputs.
    [([96], 8), ([64, 32, 32], 8), ([32, 32], 18), ([64, 64], 3), ([32, 32], 256)],
)
@pytest.mark.parametrize("has_bias", [True, False])
def test_output_and_gradients_equal_those_of_autograd(num_rows, part_sizes, rank, has_bias):
    out_features = sum(part_sizes)
    weight = randn(out_features, IN_FEATURES, scale=0.1)
    bias = randn(out_features, seed=1) if has_bias else None
    a, b = (
        randn(rank * len(part_sizes), IN_FEATURES, seed=2, scale=0.1),
        block_diagonal(part_sizes, rank),
    )
    x, dy = randn(num_rows, IN_FEATURES, seed=3), randn(num_rows, out_features, seed=4)
    wide = [tensor.double().requires_grad_() for tensor in (x, a, b)]
    expected = wide[0] @ weight.double().T + (wide[0] @ wide[1].T) @ wide[2]
    expected = expected if bias is None else expected + bias.double()
    dx, da, db = torch.autograd.grad(expected, wide, dy.double())

    adapted = Adapted(freeze_linear(weight, bias), a, b, part_sizes)
    assert isinstance(adapted.linear, NativeLinear) == (library.path() != "torch")
    y, t = adapted.forward(x)
    assert_close(y, expected, **ROUNDED)
    assert_close(t, wide[0] @ wide[1].T, **ROUNDED)
    found = adapted.backward(x, t, dy)
    assert_close(found[0], dx, **ROUNDED)
    assert_close(found[1], da, atol=0.1, rtol=2e-2, check_dtype=False)
    blocks, column = [], 0
    for index, size in enumerate(part_sizes):
        blocks.append(db[index * rank : (index + 1) * rank, column : column + size].T)
        column += size
    assert_close(found[2], torch.cat(blocks), atol=0.1, rtol=2e-2, check_dtype=False)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_rounded_base_keeps_its_own_part_of_output_and_gradient(quantization):
    linear = freeze_linear(randn(64, IN_FEATURES, scale=0.1), None, quantization)
    a, b = randn(8, IN_FEATURES, seed=2, scale=0.1), randn(8, 64, seed=3, scale=0.1)
    x, dy = randn(40, IN_FEATURES, seed=4), randn(40, 64, seed=5)
    adapted = Adapted(linear, a, b, [64])
    y, t = adapted.forward(x)
    through = (x.double() @ a.double().T) @ b.double()
    assert_close(y, linear.forward(x).double() + through, **ROUNDED)
    dx, _, _ = adapted.backward(x, t, dy)
    through = (dy.double() @ b.double().T) @ a.double()
    assert_close(dx, linear.input_grad(dy).double() + through, **ROUNDED)


def test_an_adapter_below_the_last_place_of_outputs_is_not_lost(path):
    if path == "torch":
        pytest.skip("torch adds to outputs that are rounded")
    weight, x = randn(256, IN_FEATURES), randn(256, IN_FEATURES, seed=1)
    a, b = torch.full((2, IN_FEATURES), 2**-10).bfloat16(), torch.zeros(2, 256).bfloat16()
    x[:, 0] += 64.0  # so that the adapter says much the same everywhere
    linear = freeze_linear(weight)
    base, _ = Adapted(linear, a, b, [256]).forward(x)
    changed, t = Adapted(linear, a, b + 0.125, [256]).forward(x)
    expected = 0.25 * t[:, :1].double().mean()
    last_place = 2.0 ** (base.double().abs().median().log2().floor() - 7)
    assert expected < last_place / 4
    assert (changed.double() - base.double()).mean() == pytest.approx(float(expected), rel=0.1)
