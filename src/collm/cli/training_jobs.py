"""Training jobs named on the command line."""

from dataclasses import replace

from collm.config import CollmConfig
from collm.errors import ConfigError
from collm.training.config import JobConfig, TrainingConfig


def with_jobs(config: CollmConfig, named: list[str]) -> CollmConfig:
    """Return ``config`` with a job of default settings for each ``NAME=DATA``, all jobs seeded.

    Raises:
        ConfigError: An entry has another form, or names an adapter that learns already.
    """
    jobs = list(config.training.jobs)
    for entry in named:
        adapter, _, data = entry.partition("=")
        if not adapter or not data:
            raise ConfigError(f"--train {entry!r}: give NAME=DATA, as in support=chats.jsonl")
        jobs.append(JobConfig(adapter=adapter, data=data))
    seeded = tuple(replace(job, seed=job.seed + config.seed) for job in jobs)
    training: TrainingConfig = replace(config.training, jobs=seeded)
    return replace(config, training=training)
