"""From the configuration of a process to what its replica is made from."""

import torch

from collm.config import CollmConfig
from collm.replica.settings import ReplicaSettings


def replica_settings(config: CollmConfig, name: str | None = None) -> ReplicaSettings:
    """Return what a replica is made from.

    Args:
        config: The replica's own.
        name: Its name in a cluster; ``None`` serves alone.
    """
    return ReplicaSettings(
        name=name,
        base_model=config.model.served_name,
        dtype=getattr(torch, config.model.dtype),
        quantization=config.model.quantization,
        replica=config.replica,
        memory=config.memory,
        scheduler=config.scheduler,
        lora=config.lora,
        pacing=config.pacing,
        training=config.training,
    )
