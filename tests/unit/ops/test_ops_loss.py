"""Cross-entropy and its gradient against autograd in double precision."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from collm.ops.loss import cross_entropy
from factories.kernels import PATHS, computing_on


@pytest.fixture(params=[*PATHS, "torch"], autouse=True)
def path(request):
    """Compute each test on every path that this CPU has, and in torch."""
    with computing_on(request.param) as chosen:
        yield chosen


def made(num_rows: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(num_rows, size, generator=generator) * 5.0
    return logits.to(dtype), torch.randint(0, size, (num_rows,), generator=generator)


@pytest.mark.parametrize(("num_rows", "size"), [(1, 32), (7, 96), (5, 9_024), (3, 50)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_loss_and_gradient_equal_those_of_autograd(num_rows, size, dtype):
    logits, targets = made(num_rows, size, dtype)
    wide = logits.double().requires_grad_()
    expected = functional.cross_entropy(wide, targets, reduction="none")
    (slope,) = torch.autograd.grad(expected.sum(), wide)
    losses, nothing = cross_entropy(logits.clone(), targets, wants_gradient=False)
    assert nothing is None
    assert_close(losses.double(), expected, atol=1e-4, rtol=1e-5)
    losses, gradient = cross_entropy(logits.clone(), targets, wants_gradient=True)
    assert_close(losses.double(), expected, atol=1e-4, rtol=1e-5)
    is_half = dtype == torch.bfloat16
    assert_close(gradient.double(), slope, atol=1e-6, rtol=5e-3 if is_half else 1e-4)


def test_logits_far_apart_neither_overflow_nor_vanish():
    logits = torch.full((2, 64), -3e38, dtype=torch.bfloat16)
    logits[:, 3] = 200.0
    losses, gradient = cross_entropy(logits, torch.tensor([3, 3]), wants_gradient=True)
    assert torch.equal(losses, torch.zeros(2))
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_logit_that_is_not_finite_makes_its_rows_loss_none(value):
    logits, targets = made(3, 64, torch.bfloat16)
    targets[1] = 5
    logits[1, 9] = value
    losses, _ = cross_entropy(logits, targets, wants_gradient=False)
    assert torch.isfinite(losses).tolist() == [True, False, True]
