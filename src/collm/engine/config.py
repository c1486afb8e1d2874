"""Configuration of the scheduler and of its memory."""

from dataclasses import dataclass

from collm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How one replica fills a step."""

    max_step_tokens: int = 1024
    """Most tokens computed in one step, over all sequences."""
    max_running: int = 64
    """Most sequences that hold KV blocks at once; never more than ``max_step_tokens``."""
    max_waiting: int = 1024
    """Most sequences that wait for admission; a request beyond that is refused. An eighth of the
    places is kept for models of which nothing waits."""
    enable_prefix_cache: bool = True
    """Reuse the keys and values of a prompt's beginning that the same version has computed."""

    def __post_init__(self) -> None:
        for name in ("max_step_tokens", "max_running", "max_waiting"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}; it must be an integer of at least 1")
        if not isinstance(self.enable_prefix_cache, bool):
            raise ConfigError(
                f"enable_prefix_cache is {self.enable_prefix_cache!r}; it must be true or false"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """Memory for keys and values."""

    kv_cache_mib: int = 1024
    """Memory for the KV blocks of all sequences and of the prefix cache, in MiB."""
    block_size: int = 16
    """Tokens per KV block; the kernels take multiples of 16, other sizes are left to torch."""
    max_model_len: int | None = None
    """Longest prompt plus output in tokens; by default as long as model and blocks allow."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("kv_cache_mib", "block_size"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"memory.{name} is {value}; it must be at least 1")
        if self.max_model_len is not None and self.max_model_len < 1:
            raise ConfigError(f"memory.max_model_len is {self.max_model_len}; at least 1, or null")
