import json
import math
import random

from collm.gate.watch import Watch, pooled
from collm.types import VersionId

OLD, NEW = VersionId("helper@1"), VersionId("helper@2")


def test_a_version_that_is_worse_on_fresh_feedback_is_caught() -> None:
    rng, watch = random.Random(1), Watch(0.01, OLD, NEW)
    num_added = 0
    while not watch.has_regressed and num_added < 200:
        watch.add(1.4 + rng.gauss(0.0, 0.3), 1.0 + rng.gauss(0.0, 0.3))
        num_added += 1

    assert watch.has_regressed
    assert num_added < 40
    numbers = watch.numbers()
    assert (numbers["active"], numbers["previous"]) == (NEW, OLD)
    assert numbers["num_samples"] == num_added
    assert numbers["active_loss"] > numbers["previous_loss"]
    assert numbers["evidence"] >= 100.0
    json.dumps(numbers, allow_nan=False)


def test_a_version_that_is_no_worse_is_left_alone() -> None:
    num_rolled_back = 0
    for seed in range(300):
        rng, watch = random.Random(seed), Watch(0.01, OLD, NEW)
        for _ in range(300):
            loss = rng.expovariate(1.0)
            watch.add(loss + rng.gauss(0.0, 0.4), loss + rng.gauss(0.0, 0.4))
        num_rolled_back += watch.has_regressed

    assert num_rolled_back <= 3 + 6  # 1 % of 300, and more than three deviations


def test_a_version_that_fails_where_the_one_before_does_not_has_regressed_at_once() -> None:
    watch = Watch(0.01, OLD, NEW)
    watch.add(math.nan, 1.0)

    assert watch.has_regressed
    assert watch.numbers()["is_finite"] is False
    assert watch.numbers()["active_loss"] is None


def test_a_sample_on_which_both_fail_says_nothing() -> None:
    watch = Watch(0.01, OLD, NEW)
    watch.add(math.inf, math.nan)
    watch.add(1.0, math.nan)

    assert not watch.has_regressed
    assert watch.numbers()["num_samples"] == 2


def spread_over(num_members: int, num_samples: int, seed: int, *increases: float) -> float:
    """Return the most that is ever known of samples that members take turns in getting.

    Those for whom no increase is given are better off by the last one's.
    """
    rng = random.Random(seed)
    watches = [Watch(1e-9, OLD, NEW) for _ in range(num_members)]
    most = 0.0
    for number in range(num_samples):
        index = number % num_members
        loss, increase = rng.expovariate(1.0), increases[min(index, len(increases) - 1)]
        watches[index].add(loss + increase + rng.gauss(0.0, 0.4), loss + rng.gauss(0.0, 0.4))
        most = max(most, pooled([watch.state().capital for watch in watches]))
    return most


def test_a_version_that_is_no_worse_for_any_member_is_left_alone() -> None:
    for num_members in (1, 2, 5):
        found = [spread_over(num_members, 300, seed, 0.0) for seed in range(200)]
        assert sum(most >= 100.0 for most in found) <= 2 + 4  # 1 % of 200, and three deviations


def test_a_little_that_all_members_see_adds_up_to_a_proof() -> None:
    found = [spread_over(4, 120, seed, 0.25) for seed in range(50)]
    assert sum(most >= 100.0 for most in found) > 40
    of_one = [spread_over(1, 30, seed, 0.25) for seed in range(50)]
    assert sum(most >= 100.0 for most in of_one) < 15, "what each of the four saw"


def test_one_member_alone_can_prove_it_though_others_are_better_off() -> None:
    found = [spread_over(4, 240, seed, 0.5, -0.5) for seed in range(50)]
    assert sum(most >= 100.0 for most in found) > 45


def test_a_capital_that_is_used_up_leaves_what_others_proved() -> None:
    assert pooled([0.0, 2e9]) == 5e8
    assert pooled([0.0, *[2e9] * 40]) == 1e9 * 40 / 41
    assert pooled([1.0]) == 1.0
    assert math.isfinite(pooled([2e9] * 40))


def test_what_is_known_so_far_can_be_told_to_others() -> None:
    watch = Watch(0.01, OLD, NEW)
    assert (watch.state().capital, watch.state().active_loss) == (1.0, None)
    watch.add(2.0, 1.0)
    state = watch.state()
    assert (state.active, state.previous, state.num_samples) == (NEW, OLD, 1)
    assert (state.active_loss, state.previous_loss) == (2.0, 1.0)
    assert 1.0 < state.capital < 2.0
    watch.add(math.nan, 1.0)
    assert not watch.state().is_finite
