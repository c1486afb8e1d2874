"""The simulator on a recorded run of two real replicas of the default model, as far as it holds.

See docs/simulator.md for what does not hold.
"""

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


def test_simulated_replicas_serve_about_as_many_as_the_real_ones_did(recording):
    """Attainment and TPOT are no more compared: the run was made before decodes kept a reserve."""
    real, found = recording.real, simulated(recording)
    assert found.throughput_per_s == pytest.approx(real.throughput_per_s, rel=0.1)
    assert found.ttft_p50_s == pytest.approx(real.ttft_p50_s, rel=0.25)
