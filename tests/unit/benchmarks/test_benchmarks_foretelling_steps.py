"""What a token is worth by the size of its step, on a recorded run of the default model.

From one beginning an adapter learned ``clinc150`` in steps of four sizes, at one learning rate.
"""

from pathlib import Path
from statistics import fmean

import pytest

from foretelling_steps import believed, common_losses, measured_worths, read_steps, write_steps

RECORDING = Path(__file__).parents[2] / "data" / "steps.json.gz"


@pytest.fixture(scope="module")
def sizes():
    return read_steps(RECORDING)


@pytest.fixture(scope="module")
def worths(sizes):
    found = measured_worths(sizes, sizes[0], common_losses(sizes))
    return [fmean(values) for values in found]


def test_a_recording_of_steps_is_read_as_it_was_written(sizes, tmp_path):
    path = tmp_path / "again.json.gz"
    write_steps(sizes, path, made_by="a test")
    assert read_steps(path) == sizes


def test_worth_of_a_token_is_foretold_from_the_noise_of_gradients(sizes, worths):
    efficiency = believed(sizes, sizes[0])
    assert 2_500.0 < efficiency.phi_tokens < 5_500.0
    assert sizes[-1].tokens_per_step > 4.5 * sizes[0].tokens_per_step
    for one, worth in zip(sizes, worths, strict=True):
        assert efficiency.e(one.tokens_per_step) == pytest.approx(worth, rel=0.12)


def test_rule_for_learning_rates_chosen_anew_takes_large_steps_for_too_good(sizes, worths):
    phi, base = believed(sizes, sizes[0]).phi_tokens, sizes[0].tokens_per_step
    for one, worth in zip(sizes[1:], worths[1:], strict=True):
        assert (phi + base) / (phi + one.tokens_per_step) > 1.2 * worth
