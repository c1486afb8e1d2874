"""From a cluster's configuration to that of each of its replicas."""

from dataclasses import replace
from pathlib import Path

from collm.cli.training_jobs import with_jobs
from collm.cluster.config import ClusterConfig, ReplicaEntry
from collm.config import CollmConfig
from collm.errors import ConfigError


def with_replicas(config: CollmConfig, number: int | None) -> CollmConfig:
    """Return ``config`` with ``number`` replicas of its own settings; one is no cluster.

    Raises:
        ConfigError: ``number`` is another one than the configuration lists.
    """
    listed = len(config.cluster.replicas)
    if number is None or number == listed or (number == 1 and not listed):
        return config
    if listed:
        raise ConfigError(
            f"--replicas {number}: the configuration lists {listed} in cluster.replicas"
        )
    entries = tuple(ReplicaEntry(name=f"r{index}") for index in range(number))
    return replace(config, cluster=replace(config.cluster, replicas=entries))


def replica_config(
    config: CollmConfig, index: int, *, named_jobs: list[str], num_cores: int
) -> CollmConfig:
    """Return the whole configuration of one replica of a cluster.

    Args:
        config: The cluster's.
        index: Its place in ``config.cluster.replicas``.
        named_jobs: ``NAME=DATA`` each: jobs that every replica has, besides those of ``config``.
        num_cores: Cores that all replicas share.

    Raises:
        ConfigError: Two of its jobs are for one adapter, its device has no such name, or a round's
            adapter fits no slot.
    """
    for one in config.cluster.rounds:
        if one.rank > config.lora.max_rank:
            raise ConfigError(
                f"cluster.rounds: {one.adapter!r} has rank {one.rank}; lora.max_rank allows up to "
                f"{config.lora.max_rank}"
            )
    entry = config.cluster.replicas[index]
    even_share = max(1, num_cores // len(config.cluster.replicas))
    threads = entry.threads or config.replica.threads or even_share
    device = config.replica.device if entry.device is None else entry.device
    folder = Path(entry.data_dir or Path(config.replica.data_dir) / entry.name)
    try:
        training = replace(
            config.training,
            jobs=(*config.training.jobs, *entry.jobs),
            rounds=tuple(one.adapter for one in config.cluster.rounds),
        )
        own = replace(
            config,
            # Replicas with the same samples take them in different orders.
            seed=config.seed + index,
            replica=replace(config.replica, data_dir=str(folder), device=device, threads=threads),
            training=training,
            server=replace(config.server, host="127.0.0.1", port=0),
            cluster=ClusterConfig(),
        )
        return with_jobs(own, named_jobs)
    except ConfigError as error:
        raise ConfigError(f"cluster.replicas: {entry.name}: {error}") from error
