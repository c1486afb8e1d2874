"""Configuration of fine-tuning: what learns, from what, how."""

import math
from dataclasses import dataclass
from typing import Literal

from collm.errors import ConfigError
from collm.gate.config import GateConfig

_MAX_INTERVAL_S = 20.0
"""Between checkpoints, of which none may be older than 30 s: ten are left for a snapshot to be
taken, which waits for the step under way, and to be written, behind what is written already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """One adapter that learns: for ever, or for total_steps or num_epochs."""

    adapter: str
    """Name of the adapter; its versions are served as NAME and NAME@N."""
    data: str
    """Chat-format JSONL file, plain or gzipped, or the name of a shipped sample set."""
    rank: int = 16
    """Rank of the adapter; at most lora.max_rank."""
    alpha: float = 32.0
    """LoRA's alpha; the update is scaled by alpha / rank."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW."""
    warmup_steps: int = 10
    """Optimizer steps over which the learning rate rises to its peak."""
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "constant"
    """How the learning rate falls: linear and cosine to a tenth by total_steps, inverse_sqrt for
    ever, as 1/√step."""
    hold_steps: int = 40
    """Optimizer steps at the peak before inverse_sqrt begins to fall."""
    total_steps: int | None = None
    """Optimizer steps after which the job ends; null never ends."""
    num_epochs: int | None = None
    """Passes over the training samples after which the job ends; null never ends."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Gradients of a step are shortened to this norm."""
    tokens_per_step: int = 768
    """Sample tokens accumulated before each optimizer step."""
    micro_batch_tokens: int = 1024
    """Most sample tokens packed into one micro-batch; fewer when the quanta would get too long."""
    evaluate_every: int = 10
    """Optimizer steps between evaluations on held-out samples."""
    validation: str | None = None
    """Samples to be judged by, as in data; null holds out a share of the data itself."""
    held_out_share: float = 0.05
    """Share of the samples that are never trained on, unless validation is given."""
    max_held_out: int = 512
    """Most held-out samples kept; evaluations take turns over them."""
    replay_share: float = 0.1
    """Share of the training tokens that are general text, against forgetting."""
    weight: float = 1.0
    """Share of training time relative to the other jobs' weights."""
    seed: int = 0
    """Seeds the adapter's first factors and the order of samples; the run's own seed is added."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        positive = (
            "rank", "alpha", "learning_rate", "max_grad_norm", "tokens_per_step",
            "micro_batch_tokens", "evaluate_every", "max_held_out", "weight", "hold_steps",
        )  # fmt: skip
        for name in positive:
            self._check(name, getattr(self, name) > 0, "more than 0")
        for name in ("alpha", "learning_rate", "weight"):
            self._check(name, getattr(self, name) < math.inf, "finite")
        self._check("warmup_steps", self.warmup_steps >= 0, "0 or more")
        self._check("weight_decay", 0 <= self.weight_decay < math.inf, "finite and 0 or more")
        self._check("held_out_share", 0 < self.held_out_share < 1, "between 0 and 1, both excluded")
        self._check("replay_share", 0 <= self.replay_share < 1, "from 0 to below 1")
        for name in ("total_steps", "num_epochs"):
            value = getattr(self, name)
            self._check(name, value is None or value > 0, "1 or more")
        if self.schedule in ("linear", "cosine") and self.total_steps is None:
            raise ConfigError(f"jobs: schedule {self.schedule!r} needs total_steps")

    def _check(self, name: str, is_allowed: bool, allowed: str) -> None:
        if not is_allowed:
            raise ConfigError(f"jobs.{name} is {getattr(self, name)}; allowed is {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """What a replica learns."""

    jobs: tuple[JobConfig, ...] = ()
    """Adapters that learn, each from its own data."""
    rounds: tuple[str, ...] = ()
    """Adapters that are learned together with other replicas: their jobs train when a round asks,
    for as long as there are rounds, and what is served comes from the coordinator. A cluster's
    replicas get this from cluster.rounds."""
    gate: GateConfig = GateConfig()
    """When a candidate replaces what is served."""
    general_data: str | None = "medquad"
    """Samples of general text, as in a job's data: replayed in training and a slice of every
    evaluation, so that adapters do not forget; null does without."""
    max_general: int = 512
    """Most samples of general text that are used."""
    activations: Literal["keep", "recompute"] = "keep"
    """Keep activations between forward and backward, or recompute them: a third slower, far less
    memory."""
    checkpoint_interval_s: float = 15.0
    """Time between snapshots of the training state, at most 20; with what a snapshot and its
    writing take, a crash loses at most half a minute of training."""

    def __post_init__(self) -> None:
        """Check that names are unique and ranges hold."""
        names = [job.adapter for job in self.jobs]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"training.jobs: adapter {name!r} appears more than once")
        if self.max_general < 1:
            raise ConfigError(f"training.max_general is {self.max_general}; allowed is 1 or more")
        if not 1.0 <= self.checkpoint_interval_s <= _MAX_INTERVAL_S:
            raise ConfigError(
                f"training.checkpoint_interval_s is {self.checkpoint_interval_s}; allowed is 1 to "
                f"{_MAX_INTERVAL_S:g}, so that no checkpoint is older than half a minute with what "
                "a snapshot and its writing take"
            )
