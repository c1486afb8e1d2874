import math
from typing import Any

import pytest

from collm.errors import ConfigError
from collm.training.config import TrainingConfig
from factories.training import job_config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 0}, "jobs.rank is 0; allowed is more than 0"),
        ({"held_out_share": 1.0}, "jobs.held_out_share is 1.0"),
        ({"held_out_share": 0.0}, "jobs.held_out_share is 0.0"),
        ({"warmup_steps": -1}, "jobs.warmup_steps is -1"),
        ({"total_steps": 0}, "jobs.total_steps is 0"),
        ({"num_epochs": 0}, "jobs.num_epochs is 0"),
        ({"replay_share": 1.0}, "jobs.replay_share is 1.0; allowed is from 0 to below 1"),
        ({"max_held_out": 0}, "jobs.max_held_out is 0"),
        ({"weight": 0.0}, "jobs.weight is 0.0"),
        ({"weight": math.inf}, "jobs.weight is inf; allowed is finite"),
        ({"learning_rate": math.inf}, "jobs.learning_rate is inf; allowed is finite"),
        ({"weight_decay": math.nan}, "jobs.weight_decay is nan; allowed is finite and 0 or more"),
        ({"schedule": "cosine"}, "schedule 'cosine' needs total_steps"),
    ],
)
def test_a_wrong_job_field_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        job_config(**fields)


def test_adapter_names_are_unique() -> None:
    with pytest.raises(ConfigError, match="adapter 'a' appears more than once"):
        TrainingConfig(jobs=(job_config("a"), job_config("b"), job_config("a")))


@pytest.mark.parametrize("interval_s", [0.5, 20.5, 30.0, math.nan])
def test_a_checkpoint_is_at_most_half_a_minute_old(interval_s: float) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint_interval_s is .*; allowed is 1 to 20"):
        TrainingConfig(checkpoint_interval_s=interval_s)


def test_general_text_is_at_least_a_sample() -> None:
    with pytest.raises(ConfigError, match="training.max_general is 0; allowed is 1 or more"):
        TrainingConfig(max_general=0)
