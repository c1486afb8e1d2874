"""The whole configuration: what the rooms let an operator set."""

from dataclasses import dataclass, field

from collm.cluster.config import ClusterConfig
from collm.engine.config import MemoryConfig, SchedulerConfig
from collm.lora.config import LoraConfig
from collm.metrics.config import TracesConfig
from collm.model.config import ModelConfig
from collm.pacing.config import PacingConfig
from collm.replica.config import ReplicaConfig
from collm.server.config import ServerConfig
from collm.training.config import TrainingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CollmConfig:
    """Every setting of `collm serve`, with its default."""

    seed: int = 0
    """Makes the order of training samples and the start of new adapters repeatable."""
    model: ModelConfig = field(default_factory=ModelConfig)
    replica: ReplicaConfig = field(default_factory=ReplicaConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    pacing: PacingConfig = field(default_factory=PacingConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    traces: TracesConfig = field(default_factory=TracesConfig)
