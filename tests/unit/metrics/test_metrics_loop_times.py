from random import Random

import pytest

from collm.metrics.latency import percentile
from collm.metrics.loop_times import Durations, LoopTimes


def test_percentiles_are_at_most_five_percent_above_the_exact_ones():
    random, times = Random(0), Durations()
    values = [random.lognormvariate(-4, 1) for _ in range(2_000)]
    for value in values:
        times.observe(value)
    for share in (0.01, 0.5, 0.95, 0.99, 1.0):
        exact_s, bound_s = percentile(values, share), times.percentile_s(share)
        assert exact_s is not None
        assert bound_s is not None
        assert exact_s * (1 - 1e-9) <= bound_s <= exact_s * 1.05 * (1 + 1e-9)
    assert times.percentile_s(1.0) == times.max_s == max(values)
    assert times.total_s == pytest.approx(sum(values))


def test_nothing_observed_has_no_percentile():
    assert Durations().percentile_s(0.99) is None


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-5, 0.04, 300.0])
def test_a_single_time_is_every_percentile(seconds):
    times = Durations()
    times.observe(seconds)
    assert times.percentile_s(0.01) == times.percentile_s(0.99) == seconds


def test_loop_times_sum_work_and_keep_kinds_of_quanta_apart():
    times = LoopTimes()
    times.add("serve", 0.5)
    times.add("serve", 0.25)
    times.add_quantum("loss", 0.02)
    times.add_quantum("forward", 0.03)
    times.add_gap(0.07)
    assert times.gaps() == {"count": 1, "p99_s": 0.07, "max_s": 0.07}
    assert times.seconds() == {"serve": 0.75, "train": 0.0, "evaluate": 0.0, "idle": 0.0}
    assert times.quanta() == {
        "loss": {"count": 1, "p99_s": 0.02, "max_s": 0.02},
        "forward": {"count": 1, "p99_s": 0.03, "max_s": 0.03},
    }
