import random
from statistics import median

import pytest

from collm.pacing.cost import STEP_PRIOR, QuantumCostModel, StepCostModel
from collm.pacing.quanta import Quantum, QuantumKind
from collm.types import StepLoad

TRUTH = (18e-3, 1.4e-3, 1.0e-3, 2e-6, 2e-3)


def seconds_of(load: StepLoad) -> float:
    base, decode, prefill, context, adapter = TRUTH
    return (
        base
        + decode * load.num_decode_tokens
        + prefill * load.num_prefill_tokens
        + context * load.num_context_tokens
        + adapter * load.num_adapters
    )


def random_load(rng: random.Random) -> StepLoad:
    num_decode = rng.randint(0, 32)
    return StepLoad(
        num_decode_tokens=num_decode,
        num_prefill_tokens=rng.choice((0, 0, 0, rng.randint(16, 256))),
        num_context_tokens=num_decode * rng.randint(20, 800),
        num_adapters=rng.randint(0, 3),
    )


def trained_step_model(num_steps: int, noise: float, seed: int = 0) -> StepCostModel:
    rng = random.Random(seed)
    model = StepCostModel()
    for _ in range(num_steps):
        load = random_load(rng)
        model.observe(load, seconds_of(load) * rng.lognormvariate(0.0, noise))
    return model


def test_fit_recovers_the_coefficients_exactly_without_noise() -> None:
    assert trained_step_model(400, noise=0.0).coefficients == pytest.approx(TRUTH, rel=1e-3)


def test_fit_recovers_the_time_of_a_load_under_noise() -> None:
    model = trained_step_model(800, noise=0.08)
    for load in (
        StepLoad(num_decode_tokens=1, num_context_tokens=100),
        StepLoad(num_decode_tokens=32, num_context_tokens=8_000, num_adapters=2),
        StepLoad(num_decode_tokens=8, num_prefill_tokens=200, num_context_tokens=2_000),
    ):
        assert model.predict_s(load) == pytest.approx(seconds_of(load), rel=0.08)


def test_coefficients_are_never_negative() -> None:
    rng = random.Random(1)
    model = StepCostModel()
    for _ in range(300):
        load = random_load(rng)
        model.observe(load, 0.05 / (1 + load.num_decode_tokens))  # more tokens, less time
        assert min(model.coefficients) >= 0.0


def test_prior_holds_until_four_observations() -> None:
    model = StepCostModel()
    for _ in range(3):
        model.observe(StepLoad(num_decode_tokens=1), 3.0)
    assert model.coefficients == STEP_PRIOR


@pytest.mark.parametrize("scale", [0.02, 40.0])
def test_a_prior_far_off_is_left_within_a_hundred_steps(scale: float) -> None:
    rng = random.Random(2)
    model = StepCostModel()
    for _ in range(100):
        load = random_load(rng)
        model.observe(load, scale * seconds_of(load))
    load = StepLoad(num_decode_tokens=8, num_context_tokens=1_000)
    assert model.predict_s(load) == pytest.approx(scale * seconds_of(load), rel=0.05)


@pytest.mark.parametrize("noise", [0.03, 0.1, 0.25])
def test_upper_bounds_cover_95_percent_of_steps(noise: float) -> None:
    rng = random.Random(3)
    model = StepCostModel()
    num_covered = num_scored = 0
    for i in range(4_000):
        load = random_load(rng)
        seconds = seconds_of(load) * rng.lognormvariate(0.0, noise)
        if i >= 500:
            num_scored += 1
            num_covered += seconds <= model.upper_s(load)
        model.observe(load, seconds)
    assert num_covered / num_scored == pytest.approx(0.95, abs=0.02)
    assert model.calibration.num_observed == 4_000
    assert model.calibration.covered_share == pytest.approx(0.95, abs=0.02)


def test_rare_long_steps_do_not_get_the_margin_of_the_many_short_ones() -> None:
    rng, model = random.Random(2), StepCostModel()
    bounds: dict[bool, list[tuple[bool, float]]] = {True: [], False: []}
    for number in range(2_000):
        is_long = number % 7 == 0
        load = StepLoad(8, 128 if is_long else 0, 2_000, 1)
        seconds = seconds_of(load) * rng.lognormvariate(0.0, 0.06 if is_long else 0.15)
        bound_s = model.upper_s(load)
        bounds[is_long].append((seconds <= bound_s, bound_s / seconds_of(load)))
        model.observe(load, seconds)
    late = {is_long: found[len(found) // 4 :] for is_long, found in bounds.items()}
    for found in late.values():
        assert sum(is_covered for is_covered, _ in found) / len(found) > 0.93
    assert (
        median(ratio for _, ratio in late[True]) < 1.2 < median(ratio for _, ratio in late[False])
    )


def test_upper_bounds_cover_95_percent_on_a_machine_whose_speed_changes() -> None:
    rng, model = random.Random(3), StepCostModel()
    num_covered, slowness = 0, 1.0
    for i in range(4_500):
        if i % 150 == 0:
            slowness = rng.choice((1.0, 1.2, 1.5))
        load = random_load(rng)
        seconds = slowness * seconds_of(load) * rng.lognormvariate(0.0, 0.1)
        num_covered += i >= 500 and seconds <= model.upper_s(load)
        model.observe(load, seconds)
    assert 0.945 <= num_covered / 4_000 <= 0.97


def test_calibration_scores_the_bound_that_stood_before_the_observation() -> None:
    model = StepCostModel()
    load = StepLoad(num_decode_tokens=4)
    assert model.calibration.covered_share == 1.0
    upper_s = model.upper_s(load)
    model.observe(load, upper_s * 1.01)
    model.observe(load, upper_s * 0.99)
    assert model.calibration.num_observed == 2
    assert model.calibration.covered_share == 0.5


def test_rare_long_hiccups_move_neither_fit_nor_bound_much() -> None:
    rng = random.Random(4)
    model = StepCostModel()
    load = StepLoad(num_decode_tokens=8, num_context_tokens=1_000)
    for i in range(600):
        hiccup = 0.5 if i % 50 == 1 else 0.0
        model.observe(load, seconds_of(load) * rng.lognormvariate(0.0, 0.05) + hiccup)
    assert model.predict_s(load) == pytest.approx(seconds_of(load), rel=0.05)
    assert model.upper_s(load) < 1.25 * seconds_of(load)


def test_a_bound_follows_a_machine_that_becomes_slower() -> None:
    model = trained_step_model(500, noise=0.05)
    rng = random.Random(5)
    load = StepLoad(num_decode_tokens=8, num_context_tokens=1_000)
    for _ in range(40):
        model.observe(load, 1.5 * seconds_of(load) * rng.lognormvariate(0.0, 0.05))
    assert model.upper_s(load) >= 1.4 * seconds_of(load)


def test_a_feature_that_stops_varying_keeps_its_coefficient() -> None:
    model = trained_step_model(500, noise=0.02)
    load = StepLoad(num_decode_tokens=8, num_context_tokens=1_000)
    for _ in range(5_000):
        model.observe(load, seconds_of(load))
    with_prefill = StepLoad(num_decode_tokens=8, num_prefill_tokens=100, num_context_tokens=1_100)
    assert model.predict_s(with_prefill) == pytest.approx(seconds_of(with_prefill), rel=0.1)


def quantum_model(noise: float = 0.0, num_quanta: int = 300) -> QuantumCostModel:
    rng = random.Random(6)
    model = QuantumCostModel()
    for _ in range(num_quanta):
        size = rng.randint(64, 512)
        seconds = (2e-3 + 30e-6 * size) * rng.lognormvariate(0.0, noise)
        model.observe(Quantum(QuantumKind.FORWARD, size), seconds)
    return model


def test_quantum_time_is_learned_per_kind() -> None:
    model = quantum_model()
    prior = QuantumCostModel()
    forward, loss = Quantum(QuantumKind.FORWARD, 400), Quantum(QuantumKind.LOSS, 400)
    assert model.predict_s(forward) == pytest.approx(14e-3, rel=1e-2)
    assert model.predict_s(loss) == prior.predict_s(loss)
    assert model.calibration(QuantumKind.LOSS).num_observed == 0


def test_first_slow_quanta_do_not_become_the_bound() -> None:
    model = QuantumCostModel()
    quantum = Quantum(QuantumKind.FORWARD, 512)
    for i in range(12):
        model.observe(quantum, 2.0 if i in (0, 6) else 15e-3)
    assert model.upper_s(quantum) < 30e-3


@pytest.mark.parametrize("limit_s", [5e-3, 10e-3, 40e-3])
def test_max_size_is_the_largest_that_stays_within_the_limit(limit_s: float) -> None:
    model = quantum_model(noise=0.05)
    size = model.max_size(QuantumKind.FORWARD, limit_s)
    assert size > 0
    assert model.upper_s(Quantum(QuantumKind.FORWARD, size)) <= limit_s * (1 + 1e-9)
    assert model.upper_s(Quantum(QuantumKind.FORWARD, size + 1)) > limit_s * (1 - 1e-9)


def test_everything_observed_is_added_up_and_can_be_told_from_a_time_on() -> None:
    model = QuantumCostModel()
    for size in (10, 20):
        model.observe(Quantum(QuantumKind.FORWARD, size, 0, "a"), 0.5)
    before = model.observed(QuantumKind.FORWARD)
    assert (before.num, before.features, before.seconds) == (2, (2.0, 30.0), 1.0)
    model.observe(Quantum(QuantumKind.FORWARD, 5, 0, "a"), 0.25)
    later = model.observed(QuantumKind.FORWARD).since(before)
    assert (later.num, later.features, later.seconds) == (1, (1.0, 5.0), 0.25)
    assert model.observed(QuantumKind.LOSS).num == 0


def test_max_size_is_zero_when_even_nothing_is_too_long() -> None:
    assert quantum_model().max_size(QuantumKind.FORWARD, 1e-3) == 0


def test_max_size_does_not_reach_far_beyond_what_was_measured() -> None:
    assert quantum_model().max_size(QuantumKind.FORWARD, 10.0) <= 4 * 512


def test_max_size_follows_the_prior_before_measurements() -> None:
    model = QuantumCostModel()
    size = model.max_size(QuantumKind.FORWARD, 40e-3)
    assert model.upper_s(Quantum(QuantumKind.FORWARD, size)) <= 40e-3
    assert size > 512


def test_a_prior_without_slope_is_refused() -> None:
    with pytest.raises(ValueError, match="prior of prepare"):
        QuantumCostModel(dict.fromkeys(QuantumKind, (1e-3, 0.0)))


def test_time_of_a_mixed_step_is_divided_by_what_its_tokens_cost():
    model = StepCostModel(prior=(0.05, 0.002, 0.001, 0.0, 0.0))
    assert model.prefill_share(StepLoad(num_decode_tokens=5, num_prefill_tokens=30)) == 0.75
    assert model.prefill_share(StepLoad(num_decode_tokens=5)) == 0.0
    assert model.prefill_share(StepLoad(num_prefill_tokens=5)) == 1.0
    assert model.prefill_share(StepLoad()) == 0.0


def test_tokens_that_seem_to_cost_nothing_are_counted_instead():
    model = StepCostModel(prior=(0.05, 0.0, 0.0, 0.0, 0.0))
    assert model.prefill_share(StepLoad(num_decode_tokens=1, num_prefill_tokens=3)) == 0.75
