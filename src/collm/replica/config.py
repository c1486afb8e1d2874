"""Configuration of a replica as a whole."""

import re
from dataclasses import dataclass
from typing import Literal

from collm.errors import ConfigError

_DEVICE = re.compile(r"cpu|cuda:(0|[1-9][0-9]*)")
_MAX_THREADS = 1024
"""More are a slip of the pen, and would take the machine down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """Where a replica keeps its state, and what it computes with."""

    data_dir: str = "collm-data"
    """Folder of everything that outlives the process: versions, checkpoints, decisions."""
    device: str = "cpu"
    """Where weights, keys, values and adapters are: cpu, or cuda:N for a GPU of this machine."""
    threads: int | None = None
    """Threads that compute steps and quanta; null takes every core this process may use."""
    kernels: Literal["auto", "amx", "avx512", "avx2", "torch"] = "auto"
    """Kernels that compute; auto takes the fastest that were built and that this CPU runs."""
    min_promotion_interval_s: float = 5.0
    """Least time between two promotions of an adapter; each one starts its prefix cache anew."""
    max_versions: int = 20
    """Latest versions kept on disk per adapter, besides the active, the held and pinned ones."""
    slot_wait_s: float = 10.0
    """How long a version that somebody asks for may wait for a free adapter slot."""
    import_root: str | None = None
    """Folder below which /v1/load_lora_adapter may read adapters; null lets it read none."""
    max_feedback_samples: int = 10_000
    """Latest samples kept from feedback, per adapter."""
    feedback_days: float = 90.0
    """Age in days at which feedback is dropped."""
    max_feedback_chars: int = 32_000
    """Longest prompt and answer together that feedback may teach, in characters."""
    max_responses: int = 10_000
    """Latest answers kept, so that feedback can name them."""
    response_days: float = 7.0
    """Age in days at which a kept answer is dropped."""

    def __post_init__(self) -> None:
        if not self.data_dir:
            raise ConfigError("replica.data_dir is empty; a folder is needed")
        if not _DEVICE.fullmatch(self.device):
            raise ConfigError(
                f"replica.device is {self.device!r}; allowed is 'cpu', or 'cuda:N' with N from 0"
            )
        if self.threads is not None and not 1 <= self.threads <= _MAX_THREADS:
            raise ConfigError(
                f"replica.threads is {self.threads}; allowed is 1 to {_MAX_THREADS}, or null"
            )
        if not self.min_promotion_interval_s >= 0:  # nor NaN
            raise ConfigError(
                f"replica.min_promotion_interval_s is {self.min_promotion_interval_s}; "
                "allowed is 0 or more"
            )
        if self.import_root == "":
            raise ConfigError("replica.import_root is empty; give a folder, or null")
        for name in ("max_versions", "max_feedback_samples", "max_feedback_chars", "max_responses"):
            if getattr(self, name) < 1:
                raise ConfigError(f"replica.{name} is {getattr(self, name)}; allowed is 1 or more")
        for name in ("slot_wait_s", "feedback_days", "response_days"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"replica.{name} is {getattr(self, name)}; allowed is more than 0"
                )
