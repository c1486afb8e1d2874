import json
import math
import random

from collm.gate.watch import Watch
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
