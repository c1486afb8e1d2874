from random import Random

import pytest

from collm.cluster.planning.efficiency import Efficiency, Throughput


def test_a_token_of_the_base_step_counts_as_one_and_larger_steps_pay_less():
    efficiency = Efficiency(phi_tokens=1_000.0, base_tokens=500.0)
    assert efficiency.e(500.0) == 1.0
    assert efficiency.e(2_000.0) == pytest.approx((500 * 1_500 / (2_000 * 3_000)) ** 0.5)
    assert efficiency.e(100.0) > 1.0


def test_where_noise_is_all_a_token_is_worth_one_over_the_root_of_the_step():
    assert Efficiency(1e9, 500.0).e(2_000.0) == pytest.approx(0.5, rel=1e-5)


def test_steps_are_of_whole_micro_batches():
    efficiency = Efficiency(3_000.0, base_tokens=512.0, micro_batch_tokens=1_000.0)
    assert efficiency.e(512.0) == efficiency.e(256.0) == efficiency.e(1_000.0) == 1.0
    assert efficiency.e(1_024.0) == efficiency.e(2_000.0) < 0.7


def test_worth_is_that_of_steps_along_a_made_up_gradient():
    """Adam's step is as long whatever the batch; the share of it along the gradient is not."""
    random, size, phi = Random(0), 400, 800.0
    gradient = [random.gauss(0.0, 1.0) for _ in range(size)]
    norm = sum(one * one for one in gradient) ** 0.5
    spread = norm * (phi / size) ** 0.5

    def progress_a_token(batch: float) -> float:
        found = 0.0
        for _ in range(200):
            noisy = [one + random.gauss(0.0, spread / batch**0.5) for one in gradient]
            usual = sum(one * one for one in noisy) ** 0.5
            found += sum(a * b for a, b in zip(gradient, noisy, strict=True)) / (norm * usual)
        return found / 200 / batch

    efficiency, base = Efficiency(phi, 100.0), progress_a_token(100.0)
    for batch in (200.0, 800.0, 3_200.0):
        assert progress_a_token(batch) / base == pytest.approx(efficiency.e(batch), rel=0.05)


def test_without_noise_a_tokens_worth_is_one_over_the_step():
    assert Efficiency(0.0, 500.0).e(1_000.0) == 0.5


def test_rate_and_overhead_are_found_within_a_tenth():
    random, throughput = Random(1), Throughput()
    for _ in range(200):
        num_steps = random.randint(1, 8)
        num_tokens = num_steps * random.choice((512, 1_024, 2_048))
        seconds = (num_tokens / 350.0 + 0.4 * num_steps) * random.lognormvariate(0.0, 0.1)
        throughput.observe(num_tokens, num_steps, seconds)
    for batch in (512.0, 1_024.0, 4_096.0):
        expected = 1.0 / (1.0 / 350.0 + 0.4 / batch)
        assert throughput.tokens_per_s(batch) == pytest.approx(expected, rel=0.1)
    assert throughput.step_s == pytest.approx(0.4, rel=0.25)


@pytest.mark.parametrize("per_s", [150.0, 1_500.0])
@pytest.mark.parametrize(("num_steps", "off"), [(1, 0.8), (6, 0.5)])
def test_first_window_tells_a_fast_device_from_a_slow_one(per_s: float, num_steps: int, off: float):
    throughput = Throughput()
    num_tokens = 4_096 * num_steps
    throughput.observe(num_tokens, num_steps, num_tokens / per_s)
    found, before = throughput.tokens_per_s(4_096.0), Throughput().tokens_per_s(4_096.0)
    assert abs(found - per_s) < off * abs(before - per_s)
    assert min(before, per_s) <= found <= max(before, per_s)


def test_larger_steps_are_never_slower_per_token():
    throughput = Throughput()
    for _ in range(20):
        throughput.observe(1_000, 1, 3.0)
    rates = [throughput.tokens_per_s(batch) for batch in (256.0, 1_000.0, 8_000.0)]
    assert rates == sorted(rates)
    assert rates[1] == pytest.approx(1_000 / 3.0, rel=0.1)


def test_windows_without_training_say_nothing():
    throughput = Throughput()
    before = throughput.tokens_per_s(1_000.0)
    for _ in range(20):
        throughput.observe(0, 0, 5.0)
    assert throughput.tokens_per_s(1_000.0) == before


def test_efficiency_times_throughput_has_an_inner_best():
    throughput, efficiency = Throughput((1 / 400, 2.0)), Efficiency(4_000.0, 512.0)
    progress = [throughput.tokens_per_s(b) * efficiency.e(b) for b in (64.0, 2_000.0, 200_000.0)]
    assert progress[1] > max(progress[0], progress[2])
