"""The simulator on recorded runs of two real replicas of the default model, a core each."""

from dataclasses import replace
from pathlib import Path

import pytest

from simulator_recording import Figures, load_recording, mean_figures, simulated

DATA = Path(__file__).parents[2] / "data"
SEEDS = range(3)


@pytest.fixture(scope="module")
def recording():
    return load_recording(DATA / "two_replicas.json.gz")


@pytest.fixture(scope="module")
def busy():
    """Twice as many requests, when the machine was a fifth slower than as it was profiled."""
    return load_recording(DATA / "two_busy_replicas.json.gz")


@pytest.fixture(scope="module")
def found(recording):
    return mean_figures([simulated(recording, seed) for seed in SEEDS])


@pytest.fixture(scope="module")
def found_busy(busy):
    return mean_figures([simulated(busy, seed, busy.slowness) for seed in SEEDS])


def assert_met(found: Figures, real: Figures) -> None:
    assert found.attainment == pytest.approx(real.attainment, abs=0.03)
    assert found.throughput_per_s == pytest.approx(real.throughput_per_s, rel=0.1)
    assert found.training_tokens == pytest.approx(real.training_tokens, rel=0.1)


def test_a_recording_is_read_as_it_was_written(recording, tmp_path):
    path = tmp_path / "again.json.gz"
    recording.save(path)
    assert load_recording(path) == recording


def test_simulated_replicas_serve_and_train_as_the_real_ones_did(recording, found):
    assert_met(found, recording.real)
    assert found.ttft_p50_s == pytest.approx(recording.real.ttft_p50_s, rel=0.25)
    assert found.tpot_p50_s == pytest.approx(recording.real.tpot_p50_s, rel=0.1)


def test_simulated_replicas_are_as_slow_as_the_machine_was(busy, found_busy):
    assert busy.slowness > 1.15
    assert_met(found_busy, busy.real)
    assert found_busy.ttft_p50_s == pytest.approx(busy.real.ttft_p50_s, rel=0.15)
    assert found_busy.tpot_p50_s == pytest.approx(busy.real.tpot_p50_s, rel=0.1)


def test_a_faster_machine_would_have_trained_on_more(busy, found_busy):
    assert simulated(busy).training_tokens > 1.4 * found_busy.training_tokens


def test_samples_that_begin_alike_are_trained_on_in_fewer_rows(recording, found):
    shape = replace(recording.profile.training, tokens_per_row=1.0)
    without = replace(recording, profile=replace(recording.profile, training=shape))
    assert simulated(without).training_tokens < 0.6 * found.training_tokens


def test_mean_of_runs_is_taken_figure_by_figure(found):
    other = replace(found, attainment=0.0, ttft_p99_s=None)
    mean = mean_figures([found, other])
    assert mean.attainment == pytest.approx(found.attainment / 2)
    assert mean.training_tokens == pytest.approx(found.training_tokens)
    assert mean.ttft_p99_s is None
