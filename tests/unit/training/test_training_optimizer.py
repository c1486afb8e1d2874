import math

import pytest
import torch
from torch.testing import assert_close

from collm.training.optimizer import FlatAdamW, clip_factor, learning_rate_share

CPU = torch.device("cpu")


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_pieces_equal_torch_adamw_over_several_steps(weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(30, generator=generator)
    theirs = torch.nn.Parameter(ours.clone())
    reference = torch.optim.AdamW([theirs], lr=1.0, weight_decay=weight_decay)
    optimizer = FlatAdamW(30, weight_decay, CPU)
    for step in range(6):
        rate = 0.05 / (step + 1)
        theirs.grad = torch.randn(30, generator=generator) * 10.0 ** (step - 3)
        reference.param_groups[0]["lr"] = rate
        reference.step()
        optimizer.begin_step()
        for piece in (slice(0, 7), slice(7, 8), slice(8, 30)):
            optimizer.update_(ours, theirs.grad, piece, rate)
        assert_close(ours, theirs.detach(), atol=1e-6, rtol=1e-5)


def test_inverse_sqrt_holds_its_peak_and_then_falls_for_ever() -> None:
    shares = [learning_rate_share(step, 10, "inverse_sqrt", None, 40) for step in range(1000)]
    assert shares[0] == pytest.approx(0.1)
    assert shares[9:41] == [1.0] * 32
    assert shares[160] == pytest.approx(0.5)
    assert shares[40:] == sorted(shares[40:], reverse=True)


def test_reset_forgets_everything() -> None:
    gradient = torch.ones(3)
    first, again = torch.zeros(3), torch.zeros(3)
    optimizer = FlatAdamW(3, 0.0, CPU)
    optimizer.begin_step()
    optimizer.update_(first, gradient, slice(0, 3), 0.1)
    optimizer.reset()
    optimizer.begin_step()
    optimizer.update_(again, gradient, slice(0, 3), 0.1)
    assert torch.equal(first, again)


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_clipping_equals_clip_grad_norm(max_norm: float) -> None:
    gradient = torch.linspace(-3.0, 5.0, 20)
    parameter = torch.nn.Parameter(torch.zeros(20))
    parameter.grad = gradient / 7
    expected_norm = torch.nn.utils.clip_grad_norm_([parameter], max_norm)
    factor, norm = clip_factor(gradient, 7, max_norm)
    assert norm == pytest.approx(float(expected_norm), rel=1e-6)
    # torch adds 1e-6 to the norm before it divides.
    assert_close(gradient * factor, parameter.grad, atol=0.0, rtol=1e-5)


def test_a_zero_gradient_stays_zero() -> None:
    factor, norm = clip_factor(torch.zeros(4), 3, 1.0)
    assert norm == 0.0
    assert factor == pytest.approx(1 / 3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_norm_tells_of_a_gradient_that_is_not_finite(bad: float) -> None:
    _, norm = clip_factor(torch.tensor([1.0, bad]), 2, 1.0)
    assert not math.isfinite(norm)


@pytest.mark.parametrize(
    ("step", "schedule", "expected"),
    [
        (0, "constant", 0.25),
        (3, "constant", 1.0),
        (1_000, "constant", 1.0),
        (1, "linear", 0.5),
        (4, "linear", 1.0),
        (9, "linear", 0.55),
        (14, "linear", 0.1),
        (20, "linear", 0.1),
        (9, "cosine", 0.55),
        (14, "cosine", 0.1),
    ],
)
def test_learning_rate_share_with_four_warmup_steps_of_fourteen(
    step: int, schedule: str, expected: float
) -> None:
    share = learning_rate_share(step, 4, schedule, 14)  # type: ignore[arg-type]
    assert share == pytest.approx(expected)


def test_without_warmup_the_first_step_has_the_full_rate() -> None:
    assert learning_rate_share(0, 0, "cosine", 10) == 1.0
    # A warm-up as long as the job leaves nothing to decay.
    assert learning_rate_share(9, 10, "linear", 10) == 1.0
