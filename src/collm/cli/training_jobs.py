"""Training jobs named on the command line, and the samples of every job."""

from collections.abc import Mapping
from dataclasses import replace

from collm.config import CollmConfig
from collm.errors import ConfigError
from collm.training.config import JobConfig, TrainingConfig
from collm.workload.samples import load_samples


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


def load_datasets(config: TrainingConfig) -> dict[str, list[list[Mapping[str, object]]]]:
    """Return each job's training samples as chat messages, by adapter.

    Raises:
        DataError: A set is unknown, or a line is no sample; it names the line and the field.
    """
    return {
        job.adapter: [
            [{"role": message.role, "content": message.content} for message in sample.messages]
            for sample in load_samples(job.data)
        ]
        for job in config.jobs
    }
