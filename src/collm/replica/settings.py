"""What a replica is made from, besides its checkpoint and its data folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from collm.chats import Sample
from collm.engine.config import MemoryConfig, SchedulerConfig
from collm.lora.config import LoraConfig
from collm.pacing.config import PacingConfig
from collm.replica.config import ReplicaConfig
from collm.training.config import TrainingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Every room's configuration."""

    name: str | None = None
    """Its name in a cluster."""
    base_model: str
    dtype: torch.dtype
    quantization: Literal["int8", "int4"] | None = None
    replica: ReplicaConfig
    memory: MemoryConfig
    scheduler: SchedulerConfig
    lora: LoraConfig
    pacing: PacingConfig
    training: TrainingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSets:
    """The samples that the configuration names."""

    by_name: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    """By what a job's ``data`` or ``validation`` says."""
    general: Sequence[Sample] = ()
    """General text, against forgetting."""
