"""The mean of losses and its standard error."""

import math
from random import Random
from statistics import fmean, stdev

import pytest

from collm.gate.loss_sum import LossSum


def summed(losses) -> LossSum:
    sums = LossSum()
    for loss in losses:
        sums.add(loss)
    return sums


def test_without_losses_there_is_no_mean() -> None:
    assert LossSum().mean is None
    assert LossSum().error is None


def test_one_loss_may_be_off_by_as_much_as_it_is_large() -> None:
    sums = summed([0.7])
    assert (sums.mean, sums.error) == (0.7, pytest.approx(0.7))


def test_losses_that_happen_to_be_alike_are_not_taken_for_sure() -> None:
    assert summed([0.5] * 16).error == pytest.approx(0.125)


def test_error_is_the_spread_of_means() -> None:
    """Many right answers and a few wrong ones, as of a task that is nearly learned."""
    random = Random(0)

    def draw() -> list[float]:
        return [random.choice((0.05, 0.05, 0.05, 2.0)) for _ in range(64)]

    found = [summed(draw()) for _ in range(400)]
    means = [one.mean for one in found]
    assert fmean(means) == pytest.approx(0.54, rel=0.05)
    assert fmean(one.error for one in found) == pytest.approx(stdev(means), rel=0.1)
    assert stdev(means) > 1.4 * fmean(means) / math.sqrt(64)
