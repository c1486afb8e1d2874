import math
from random import Random

import pytest

from collm.cluster.planning.quality_curve import QualityCurve


def law(tokens: float) -> float:
    """Loss from 2.6 nats towards 0.6, half of the way after 60,000 tokens."""
    return 0.6 + 2.0 * (1.0 + tokens / 20_000.0) ** -0.5


def taught(num_points: int, noise: float = 0.0, seed: int = 0) -> QualityCurve:
    random, curve = Random(seed), QualityCurve()
    for number in range(num_points):
        tokens = 5_000.0 * number
        curve.add(tokens, law(tokens) * (1.0 + random.gauss(0.0, noise)))
    return curve


def test_a_known_curve_is_continued_within_five_percent():
    curve = taught(16)
    for more in (10_000.0, 40_000.0, 80_000.0):
        assert curve.loss(more) == pytest.approx(law(75_000.0 + more), rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_a_noisy_curve_is_continued_within_eight_percent(seed):
    curve = taught(16, noise=0.02, seed=seed)
    assert curve.loss_now == pytest.approx(law(75_000.0), rel=0.04)
    assert curve.loss(40_000.0) == pytest.approx(law(115_000.0), rel=0.08)


@pytest.mark.parametrize("num_points", [0, 1, 2, 3, 4, 8, 30])
def test_gains_begin_at_zero_rise_and_shrink(num_points):
    curve = taught(num_points, noise=0.02, seed=num_points)
    gains = [curve.gain(10_000.0 * number) for number in range(12)]
    assert gains[0] == 0.0
    steps = [b - a for a, b in zip(gains, gains[1:], strict=False)]
    assert all(step >= 0.0 for step in steps)
    assert all(b <= a + 1e-12 for a, b in zip(steps, steps[1:], strict=False))


def test_without_points_there_is_something_to_gain():
    curve = QualityCurve(prior_loss=2.0)
    assert curve.loss_now == 2.0
    assert 1.5 < curve.loss(20_000.0) < 1.8
    assert curve.loss(1e12) == pytest.approx(1.0, rel=0.01)


def test_few_points_set_the_level_of_the_prior():
    curve = QualityCurve(prior_loss=2.0)
    curve.add(0.0, 3.0)
    curve.add(1_000.0, 2.9)
    assert curve.loss_now == pytest.approx(2.9, rel=0.02)


def test_a_flat_curve_promises_little():
    flat, falling = QualityCurve(), taught(12)
    for number in range(12):
        flat.add(5_000.0 * number, 1.5 + 0.01 * (-1) ** number)
    assert flat.gain(50_000.0) < 0.1 * falling.gain(50_000.0)


def test_a_shift_drops_the_points_before_it():
    curve = taught(12, noise=0.01)
    for number in range(12, 18):
        curve.add(5_000.0 * number, 3.0 - 0.05 * (number - 12))
    assert curve.num_points < 10
    assert curve.loss_now == pytest.approx(2.75, rel=0.05)
    assert curve.gain(50_000.0) > 0.0


def test_noise_alone_drops_few_points():
    assert all(taught(20, noise=0.02, seed=seed).num_points >= 12 for seed in range(20))


def test_training_that_went_back_begins_anew():
    curve = taught(8)
    curve.add(1_000.0, 2.0)
    assert curve.num_points == 1


def test_only_the_latest_points_count():
    assert taught(100).num_points == 24


def test_tokens_to_a_loss_invert_the_curve():
    curve = taught(10)
    assert curve.tokens_to(curve.loss(12_345.0)) == pytest.approx(12_345.0, rel=1e-6)
    assert curve.tokens_to(10.0) == 0.0
    assert curve.tokens_to(0.0) == math.inf


def test_losses_that_are_not_finite_are_ignored():
    curve = taught(5)
    before = curve.loss_now
    curve.add(100_000.0, math.nan)
    assert (curve.num_points, curve.loss_now) == (5, before)
