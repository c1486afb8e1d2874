"""Made-up gradients whose noise scale is known: g plus noise of trace s / (weight) each."""

import math
from collections.abc import Sequence
from random import Random

import pytest

from collm.cluster.planning.noise_scale import NoiseScale
from collm.training.gradient_spread import GradientSpread
from collm.types import GradientSums

DIMENSION = 200
TOKENS_PER_WEIGHT = 4.0


def step(random: Random, weights: Sequence[float], phi_tokens: float) -> GradientSums:
    """One optimizer step's sums; |g|² is 1, so that the noise's trace per token is φ."""
    g = 1.0 / math.sqrt(DIMENSION)
    spread, whole = GradientSpread(), [0.0] * DIMENSION
    for weight in weights:
        deviation = math.sqrt(phi_tokens / (weight * TOKENS_PER_WEIGHT) / DIMENSION)
        gradient = [weight * random.gauss(g, deviation) for _ in range(DIMENSION)]
        spread.add(sum(x * x for x in gradient), weight)
        whole = [a + b for a, b in zip(whole, gradient, strict=True)]
    norm = math.sqrt(sum(x * x for x in whole)) / sum(weights)
    return spread.sums(norm, int(TOKENS_PER_WEIGHT * sum(weights)))


@pytest.mark.parametrize("phi_tokens", [300.0, 2_000.0])
@pytest.mark.parametrize("weights", [(60.0, 60.0), (100.0, 20.0, 55.0, 75.0)])
def test_a_known_noise_scale_is_found_within_a_tenth(phi_tokens, weights):
    random, scale = Random(1), NoiseScale(half_life_steps=1e9)
    for _ in range(300):
        scale.add(step(random, weights, phi_tokens))
    assert scale.measured_tokens == pytest.approx(phi_tokens, rel=0.1)
    assert scale.phi_tokens == pytest.approx(phi_tokens, rel=0.1)


def test_sums_over_steps_say_the_same_as_the_steps():
    random = Random(2)
    steps = [step(random, (40.0, 60.0), 500.0) for _ in range(50)]
    one_by_one, at_once = NoiseScale(half_life_steps=1e9), NoiseScale(half_life_steps=1e9)
    total = GradientSums()
    for sums in steps:
        one_by_one.add(sums)
        total = total.plus(sums)
    at_once.add(total)
    assert at_once.measured_tokens == pytest.approx(one_by_one.measured_tokens, rel=1e-6)


def test_a_noise_scale_that_changes_is_followed():
    random, scale = Random(3), NoiseScale(half_life_steps=30.0)
    for phi_tokens in (300.0, 3_000.0):
        for _ in range(200):
            scale.add(step(random, (60.0, 60.0, 60.0), phi_tokens))
    assert scale.measured_tokens == pytest.approx(3_000.0, rel=0.3)


def test_before_any_measurement_it_is_the_prior():
    scale = NoiseScale(prior_tokens=1_234.0)
    assert scale.measured_tokens is None
    scale.add(GradientSums())
    assert scale.phi_tokens == 1_234.0


def test_pure_noise_is_bounded():
    scale = NoiseScale()
    tokens = 100
    scale.add(
        GradientSums(
            num_steps=10, num_differences=10, spread=1.0, square=0.0001, inverse_tokens=10 / tokens
        )
    )
    assert scale.measured_tokens == 100.0 * tokens


def test_equal_gradients_have_no_noise():
    spread = GradientSpread()
    spread.add(9.0, 1.0)
    spread.add(9.0, 1.0)
    scale = NoiseScale()
    scale.add(spread.sums(3.0, 10))
    assert scale.measured_tokens == 0.0
    assert scale.phi_tokens > 0.0


def test_one_micro_batch_says_nothing_and_neither_does_a_skipped_step():
    spread = GradientSpread()
    spread.add(4.0, 1.0)
    assert spread.sums(2.0, 10) == GradientSums()
    spread.add(math.nan, 1.0)
    assert spread.sums(math.nan, 20) == GradientSums()
