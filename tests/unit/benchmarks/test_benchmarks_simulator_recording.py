"""The simulator on recorded runs of two real replicas of the default model, a core each."""

from dataclasses import replace
from pathlib import Path

import pytest

from simulator_recording import Figures, Recording, load_recording, mean_figures, simulated

DATA = Path(__file__).parents[2] / "data" / "two_replicas"
SEEDS = range(3)


def recorded(name: str) -> Recording:
    return load_recording(DATA / f"{name}.json.gz")


def assert_met(found: Figures, real: Figures) -> None:
    assert found.attainment == pytest.approx(real.attainment, abs=0.03)
    assert found.throughput_per_s == pytest.approx(real.throughput_per_s, rel=0.1)
    assert found.training_tokens == pytest.approx(real.training_tokens, rel=0.1)


@pytest.fixture(scope="module")
def recording():
    return recorded("1.6")


@pytest.fixture(scope="module")
def found(recording):
    return mean_figures([simulated(recording, seed) for seed in SEEDS])


def test_a_recording_is_read_as_it_was_written(recording, tmp_path):
    path = tmp_path / "again.json.gz"
    recording.save(path)
    assert load_recording(path) == recording


def test_simulated_replicas_do_as_the_real_ones_did_as_profiled(recording, found):
    assert_met(found, recording.real)
    assert found.ttft_p50_s == pytest.approx(recording.real.ttft_p50_s, rel=0.25)
    assert found.tpot_p50_s == pytest.approx(recording.real.tpot_p50_s, rel=0.1)


@pytest.mark.parametrize("name", ["1.6", "2.4", "3.2"])
def test_simulated_replicas_do_as_the_real_ones_did_when_as_slow(name):
    run = recorded(name)
    found = mean_figures([simulated(run, seed, run.slowness) for seed in SEEDS])
    assert_met(found, run.real)
    assert found.ttft_p50_s == pytest.approx(run.real.ttft_p50_s, rel=0.15)
    assert found.tpot_p50_s == pytest.approx(run.real.tpot_p50_s, rel=0.1)


def test_replica_that_learned_more_gets_more_which_no_simulated_one_does():
    run = recorded("2.4-unlike")
    found = simulated(run, slowness=run.slowness)
    assert found.attainment == pytest.approx(run.real.attainment, abs=0.03)
    assert found.training_tokens < 0.9 * run.real.training_tokens


def test_real_attainment_under_overload_lies_among_the_simulated_ones():
    run = recorded("6")
    found = [simulated(run, seed, run.slowness) for seed in range(5)]
    shares = [one.attainment for one in found]
    assert min(shares) < run.real.attainment < max(shares)
    assert mean_figures(found).throughput_per_s == pytest.approx(run.real.throughput_per_s, rel=0.1)


def test_a_faster_machine_would_have_trained_on_more():
    run = recorded("3.2")
    as_slow = simulated(run, slowness=run.slowness)
    assert run.slowness > 1.15
    assert simulated(run).training_tokens > 1.3 * as_slow.training_tokens


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
