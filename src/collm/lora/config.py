"""Configuration of adapter memory."""

from dataclasses import dataclass

from collm.errors import ConfigError

MAX_RANK = 512
"""Largest adapter rank that can be configured or read from a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """How many adapter versions a replica holds, and how large they may be."""

    max_rank: int = 16
    """Largest adapter rank; every slot reserves memory for it."""
    num_slots: int = 8
    """Adapter versions on the device at once: per adapter one active, one held for rollback, one
    staged, and those that running requests still use."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 1 <= self.max_rank <= MAX_RANK:
            raise ConfigError(f"lora.max_rank is {self.max_rank}; allowed are 1 to {MAX_RANK}")
        if not 2 <= self.num_slots <= 1024:
            raise ConfigError(f"lora.num_slots is {self.num_slots}; allowed are 2 to 1024")
