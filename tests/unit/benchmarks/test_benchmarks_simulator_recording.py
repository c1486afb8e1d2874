"""The simulator on a recorded run of two real replicas of the default model."""

from dataclasses import replace
from pathlib import Path

import pytest

from simulator_recording import load_recording, simulated

RECORDING = Path(__file__).parents[2] / "data" / "two_replicas.json.gz"


@pytest.fixture(scope="module")
def recording():
    return load_recording(RECORDING)


def test_a_recording_is_read_as_it_was_written(recording, tmp_path):
    path = tmp_path / "again.json.gz"
    recording.save(path)
    assert load_recording(path) == recording


@pytest.fixture(scope="module")
def found(recording):
    return simulated(recording)


def test_simulated_replicas_serve_as_many_as_the_real_ones_did(recording, found):
    real = recording.real
    assert found.attainment == pytest.approx(real.attainment, abs=0.03)
    assert found.throughput_per_s == pytest.approx(real.throughput_per_s, rel=0.1)
    assert found.ttft_p50_s == pytest.approx(real.ttft_p50_s, rel=0.25)
    assert found.tpot_p50_s == pytest.approx(real.tpot_p50_s, rel=0.1)


def test_simulated_replicas_train_on_as_many_tokens_as_the_real_ones_did(recording, found):
    assert found.training_tokens == pytest.approx(recording.real.training_tokens, rel=0.1)


def test_samples_that_begin_alike_are_trained_on_in_fewer_rows(recording, found):
    shape = replace(recording.profile.training, tokens_per_row=1.0)
    without = replace(recording, profile=replace(recording.profile, training=shape))
    assert simulated(without).training_tokens < 0.6 * found.training_tokens
