"""Configuration of a replica as a whole."""

from dataclasses import dataclass

from collm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """Where a replica keeps its state, and what it computes with."""

    data_dir: str = "collm-data"
    """Folder of everything that outlives the process: versions, checkpoints, decisions."""
    threads: int | None = None
    """Threads that compute steps and quanta; null takes every core this process may use."""
    min_promotion_interval_s: float = 5.0
    """Least time between two promotions of an adapter; each one starts its prefix cache anew."""
    max_versions: int = 20
    """Latest versions kept on disk per adapter, besides the active one and the one held."""

    def __post_init__(self) -> None:
        if not self.data_dir:
            raise ConfigError("replica.data_dir is empty; a folder is needed")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"replica.threads is {self.threads}; allowed is 1 or more, or null")
        if self.min_promotion_interval_s < 0:
            raise ConfigError(
                f"replica.min_promotion_interval_s is {self.min_promotion_interval_s}; 0 or more"
            )
        if self.max_versions < 1:
            raise ConfigError(f"replica.max_versions is {self.max_versions}; 1 or more")
