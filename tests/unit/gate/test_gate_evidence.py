import math
import random
from statistics import median

import pytest

from collm.gate.evidence import Evidence, fewest_differences, gain


def test_capital_is_the_mean_over_both_bets() -> None:
    evidence = Evidence()
    evidence.add(1.0)
    evidence.add(-0.5)

    # Bets 0.5 and 0.95: (1.5 · 0.75 + 1.95 · 0.525) / 2 = (1.125 + 1.02375) / 2.
    assert evidence.value == pytest.approx(1.074375)
    assert evidence.peak == pytest.approx((1.5 + 1.95) / 2)  # after the first


def test_proof_stays_when_later_differences_go_the_other_way() -> None:
    evidence = Evidence()
    for _ in range(6):
        evidence.add(0.9)
    assert evidence.proves(0.05)

    for _ in range(20):
        evidence.add(-0.9)
    assert evidence.value < 0.01
    assert evidence.proves(0.05)


def test_nothing_is_proven_before_the_first_look() -> None:
    evidence = Evidence(first_look=10)
    for _ in range(9):
        evidence.add(1.0)
    assert (evidence.peak, evidence.proves(0.05)) == (0.0, False)

    evidence.add(1.0)
    assert evidence.proves(0.05)


def test_evidence_may_prove_what_its_pace_so_far_comes_to() -> None:
    evidence = Evidence()
    assert evidence.may_prove(0.05, num_differences=1), "nobody knows yet"
    for _ in range(10):
        evidence.add(0.1)
    # (1.05^10 + 1.095^10) / 2 = 2.05; 20 is its 4.16th power, so 42 differences would do.
    assert evidence.value == pytest.approx(2.054, abs=1e-3)
    assert evidence.may_prove(0.05, num_differences=42)
    assert not evidence.may_prove(0.05, num_differences=41)


def test_evidence_that_has_lost_capital_is_on_no_way_to_a_proof() -> None:
    evidence = Evidence()
    for _ in range(5_000):
        evidence.add(-1.0)
    assert not evidence.may_prove(0.05, num_differences=10**9)


def test_without_any_difference_nothing_is_proven() -> None:
    assert not Evidence().proves(0.999)


@pytest.mark.parametrize("d", [1.001, -1.001, math.nan])
def test_a_difference_out_of_range_is_refused(d: float) -> None:
    with pytest.raises(ValueError, match="difference"):
        Evidence().add(d)


def test_capital_survives_a_long_run_of_either_sign() -> None:
    rising, falling = Evidence(), Evidence()
    for _ in range(5_000):
        rising.add(1.0)
        falling.add(-1.0)

    assert rising.proves(1e-300)
    assert falling.value >= 0.0


def test_a_small_improvement_is_proven_in_about_two_hundred_samples() -> None:
    rng = random.Random(0)
    needed = [_num_until_proof(rng, mean=0.03, deviation=0.15) for _ in range(400)]

    # A z-test of fixed size, which may be looked at once, needs 155 for the same (power 0.8).
    assert median(needed) < 200
    assert median(_num_until_proof(rng, mean=0.2, deviation=0.3) for _ in range(400)) < 25


def _num_until_proof(rng: random.Random, mean: float, deviation: float) -> int:
    evidence = Evidence()
    for num_added in range(1, 1_000):
        evidence.add(max(-1.0, min(1.0, rng.gauss(mean, deviation))))
        if evidence.proves(0.05):
            return num_added
    return 1_000


def test_gain_is_bounded_odd_and_follows_the_loss() -> None:
    assert gain(1.5, 1.0) == pytest.approx(math.tanh(1.0))
    assert gain(1.0, 1.5) == -gain(1.5, 1.0)
    assert gain(1e9, 0.0) == 1.0
    assert gain(3.0, 2.99) == pytest.approx(0.02, rel=1e-3)  # the same at any level of loss
    assert gain(0.02, 0.01) == pytest.approx(0.02, rel=1e-3)


@pytest.mark.parametrize(
    ("active", "candidate", "expected"),
    [
        (math.nan, 2.0, 1.0),
        (math.inf, 2.0, 1.0),
        (2.0, math.nan, -1.0),
        (2.0, math.inf, -1.0),
        (math.nan, math.inf, 0.0),
    ],
)
def test_a_side_without_a_finite_loss_loses_by_all_there_is(
    active: float, candidate: float, expected: float
) -> None:
    assert gain(active, candidate) == expected


@pytest.mark.parametrize(
    ("error", "count"),
    # By hand: (1.5 ** n + 1.95 ** n) / 2 is 17.9 at n = 5, 33.2 at 6,
    # 62.2 at 7 and 117.3 at 8.
    [(0.05, 6), (0.01, 8)],
)
def test_fewest_differences_prove_when_each_is_the_best_there_is(error, count):
    assert fewest_differences(error) == count
    for num_added, is_proven in ((count - 1, False), (count, True)):
        evidence = Evidence()
        for _ in range(num_added):
            evidence.add(1.0)
        assert evidence.proves(error) == is_proven
