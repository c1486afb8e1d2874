"""From a job's row to the configuration that it trains by."""

import pytest

from collm.errors import RequestError
from collm.replica.job_settings import (
    configured_settings,
    requested_config,
    requested_settings,
    samples_per_step,
)
from collm.training.config import JobConfig
from factories.archives import job_record


def config_of(is_continuous=False, seed=None, training_file="file-1", **hyperparameters):
    settings = requested_settings(hyperparameters, seed, max_rank=64)
    return requested_config(
        job_record(
            settings=settings,
            is_continuous=is_continuous,
            training_file=training_file,
            validation_file="file-2",
        )
    )


def test_what_is_not_chosen_is_as_in_the_configuration_file():
    default = JobConfig(adapter="tutor", data="file-1", validation="file-2", num_epochs=3)
    assert config_of() == default


def test_choices_are_taken_over():
    config = config_of(
        n_epochs=7, rank=4, alpha=8.0, tokens_per_step=99, weight=2.0, replay_share=0.0, seed=5
    )
    chosen = (config.num_epochs, config.rank, config.alpha, config.tokens_per_step)
    assert chosen == (7, 4, 8.0, 99)
    assert (config.weight, config.replay_share, config.seed) == (2.0, 0.0, 5)


@pytest.mark.parametrize(
    ("chosen", "rank", "alpha"), [({}, 4, 8.0), ({"alpha": 3.0}, 4, 3.0), ({"rank": 2}, 2, 32.0)]
)
def test_rank_that_is_left_open_is_one_that_can_be_served(chosen, rank, alpha):
    config = requested_config(job_record(settings=requested_settings(chosen, None, max_rank=4)))
    assert (config.rank, config.alpha) == (rank, alpha)


def test_learning_rate_is_given_or_multiplied():
    assert config_of(learning_rate=0.5).learning_rate == 0.5
    default = JobConfig(adapter="tutor", data="x").learning_rate
    assert config_of(learning_rate_multiplier=3).learning_rate == pytest.approx(3 * default)


def test_continuous_job_has_no_last_epoch_and_may_have_no_file():
    config = config_of(is_continuous=True, training_file=None)
    assert (config.num_epochs, config.total_steps, config.data) == (None, None, "feedback")


def test_samples_per_step_are_turned_into_tokens_by_the_builder():
    record = job_record(settings=requested_settings({"batch_size": 16}, None, 64))
    assert samples_per_step(record) == 16
    assert samples_per_step(job_record()) is None


def test_setting_out_of_range_is_refused():
    with pytest.raises(RequestError, match=r"rank is 0"):
        config_of(rank=0)


def test_settings_of_a_configured_job_are_as_json_has_them():
    config = JobConfig(adapter="tutor", data="x", learning_rate=1)
    assert configured_settings(config)["learning_rate"] == 1
    assert JobConfig(**configured_settings(config)) == config
