"""What a job's row says about how it trains, and the configuration that it stands for."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from collm.errors import ConfigError, RequestError
from collm.store.jobs import JobRecord
from collm.training.config import JobConfig

_DEFAULT_EPOCHS = 3
"""Of a job that ends, when its client leaves the choice here."""
_SAME_NAME = ("rank", "alpha", "learning_rate", "tokens_per_step", "weight", "replay_share", "seed")
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(JobConfig)}


def configured_settings(config: JobConfig) -> dict[str, Any]:
    """Return the settings of a job from the configuration file, for its row."""
    settings: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return settings


def requested_settings(
    hyperparameters: Mapping[str, int | float], seed: int | None, max_rank: int
) -> dict[str, Any]:
    """Return the settings of a job that a client asked for, for its row.

    A rank that the client leaves open is one that can be served, with alpha in proportion.
    """
    settings: dict[str, Any] = {**hyperparameters, "seed": seed or 0}
    if "rank" not in settings and max_rank < _DEFAULTS["rank"]:
        settings["rank"] = max_rank
        settings.setdefault("alpha", _DEFAULTS["alpha"] * max_rank / _DEFAULTS["rank"])
    return settings


def requested_config(record: JobRecord) -> JobConfig:
    """Return how a job trains that a client asked for.

    Raises:
        RequestError: A setting is out of range.
    """
    settings = record.settings
    chosen: dict[str, Any] = {name: settings[name] for name in _SAME_NAME if name in settings}
    if (multiplier := settings.get("learning_rate_multiplier")) is not None:
        chosen["learning_rate"] = multiplier * _DEFAULTS["learning_rate"]
    if not record.is_continuous:
        chosen["num_epochs"] = settings.get("n_epochs", _DEFAULT_EPOCHS)
    try:
        return JobConfig(
            adapter=record.adapter,
            data=record.training_file or "feedback",
            validation=record.validation_file,
            **chosen,
        )
    except ConfigError as error:
        raise RequestError(str(error), param="hyperparameters", code="invalid_value") from error


def samples_per_step(record: JobRecord) -> int | None:
    """Return the samples per optimizer step that a client asked for, if it did."""
    value = record.settings.get("batch_size")
    return None if value is None else int(value)
