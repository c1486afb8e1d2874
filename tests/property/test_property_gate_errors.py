"""How often the whole gate promotes candidates that are no better, and ones that are.

Every candidate is compared over rotating held-out samples, looked at after each micro-batch, which
is how a job does it. Noise is on losses in nats, floors and tails included.
"""

import random
from collections.abc import Callable

import pytest

from collm.gate.config import GENERAL, GateConfig
from collm.gate.rotation import Rotation
from collm.gate.trial import PairedLoss, Trial, Verdict

CONFIG = GateConfig(slice_share=0.0)
NUM_CANDIDATES = 1_000
MAX_FALSE = 71
"""5 % of 1,000 and three standard deviations of that count: the error bound holds exactly, so only
the draw of the seeds is left to allow for."""
LOOK_EVERY = 8

Draw = Callable[[random.Random, str], tuple[float, float]]
"""Draws (active, candidate) losses of one sample of a slice."""


def run_trial(draw: Draw, rng: random.Random, names: tuple[str, ...] = ("a",)) -> Verdict:
    trial = Trial(CONFIG)
    while True:
        for _ in range(LOOK_EVERY):
            name = names[trial.num_samples % len(names)]
            active, candidate = draw(rng, name)
            trial.add(PairedLoss(sample_id="", slice=name, active=active, candidate=candidate))
        verdict = trial.verdict(is_exhausted=False)
        if verdict is not None:
            return verdict


def count(draw: Draw, names: tuple[str, ...] = ("a",), num: int = NUM_CANDIDATES) -> int:
    verdicts = [run_trial(draw, random.Random(seed), names) for seed in range(num)]
    return verdicts.count(Verdict.BETTER)


def normal(rng: random.Random, name: str) -> tuple[float, float]:
    loss = rng.expovariate(0.5)
    return loss, loss + rng.gauss(0.0, 0.2)


def large_noise(rng: random.Random, name: str) -> tuple[float, float]:
    loss = rng.expovariate(1.0)
    return loss, loss + rng.gauss(0.0, 1.0)


def heavy_tails(rng: random.Random, name: str) -> tuple[float, float]:
    return 2.0, 2.0 + 0.1 * rng.gauss(0.0, 1.0) / max(1e-3, abs(rng.gauss(0.0, 1.0)))  # Cauchy


def two_runs_of_one_recipe(rng: random.Random, name: str) -> tuple[float, float]:
    scale = rng.choice([0.01, 0.3, 2.0])
    return rng.expovariate(1.0 / scale), rng.expovariate(1.0 / scale)


def mostly_equal(rng: random.Random, name: str) -> tuple[float, float]:
    return 1.0, 1.0 + (rng.choice([-2.0, 2.0]) if rng.random() < 0.05 else 0.0)


def opposite_slices(rng: random.Random, name: str) -> tuple[float, float]:
    return 1.0, 1.0 + {"a": -0.09, "b": 0.09}[name] + rng.gauss(0.0, 0.3)


@pytest.mark.parametrize(
    ("draw", "names"),
    [
        (normal, ("a", "b", "c", GENERAL)),
        (large_noise, ("a",)),
        (heavy_tails, ("a",)),
        (two_runs_of_one_recipe, ("a",)),
        (mostly_equal, ("a",)),
        (opposite_slices, ("a", "b")),
    ],
)
def test_candidates_that_are_no_better_pass_no_more_often_than_stated(
    draw: Draw, names: tuple[str, ...]
) -> None:
    assert count(draw, names) <= MAX_FALSE


def test_the_error_holds_along_a_chain_that_reuses_its_held_out_samples() -> None:
    """Each promotion makes the next comparison start from a winner on nearly the same samples."""
    rng, rotation = random.Random(7), Rotation(CONFIG.rotate_share)
    pool = {name: [f"{name}{number}" for number in range(64)] for name in ("a", "b", GENERAL)}
    slice_of = {sample_id: name for name, ids in pool.items() for sample_id in ids}
    difficulty = {sample_id: rng.expovariate(1.0) for sample_id in slice_of}
    active = {sample_id: loss + rng.gauss(0.0, 0.3) for sample_id, loss in difficulty.items()}
    num_promoted = 0
    for _ in range(NUM_CANDIDATES):
        candidate = {
            sample_id: loss + rng.gauss(0.0, 0.3) for sample_id, loss in difficulty.items()
        }
        trial = Trial(CONFIG)
        order = rotation.order(pool)
        for sample_id in order:
            trial.add(
                PairedLoss(
                    sample_id=sample_id,
                    slice=slice_of[sample_id],
                    active=active[sample_id],
                    candidate=candidate[sample_id],
                )
            )
            if trial.verdict(is_exhausted=False) is not None:
                break
        rotation.advance(order[: trial.num_samples])
        if trial.report().verdict is Verdict.BETTER:
            num_promoted += 1
            active = candidate

    assert num_promoted <= MAX_FALSE


def better_by(nats: float, noise: float) -> Draw:
    def draw(rng: random.Random, name: str) -> tuple[float, float]:
        loss = rng.expovariate(0.5)
        change = 0.0 if name == GENERAL else -nats
        return loss, loss + change + rng.gauss(0.0, noise)

    return draw


@pytest.mark.parametrize(
    ("nats", "noise", "names", "at_least"),
    [
        (0.3, 0.5, ("a",), 195),
        (0.1, 0.3, ("a",), 190),
        (0.1, 0.3, ("a", "a", "a", GENERAL), 180),
        (0.02, 0.1, ("a",), 130),
        (0.5, 0.5, (*"abcdefghij", GENERAL), 195),
    ],
)
def test_candidates_that_are_better_pass(
    nats: float, noise: float, names: tuple[str, ...], at_least: int
) -> None:
    assert count(better_by(nats, noise), names, num=200) >= at_least


@pytest.mark.parametrize(("increase", "at_most"), [(0.25, 75), (0.4, 5)])
def test_candidates_worse_on_one_slice_past_its_bound_seldom_pass(
    increase: float, at_most: int
) -> None:
    def draw(rng: random.Random, name: str) -> tuple[float, float]:
        return 1.0, 1.0 + {"a": -0.5, "b": -0.5, "c": increase}[name] + rng.gauss(0.0, 0.3)

    assert count(draw, ("a", "b", "c"), num=500) <= at_most
