"""Configuration of the base model."""

from dataclasses import dataclass
from typing import Literal

from collm.errors import ConfigError

DEFAULT_SOURCE = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which base model is served, and in what number format."""

    source: str = DEFAULT_SOURCE
    """Checkpoint folder, GGUF file, a name from ``collm models list``, or a hub id."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Number format of the base weights and of the keys and values."""

    def __post_init__(self) -> None:
        if not self.source:
            raise ConfigError(
                "source is empty; allowed: a folder, a .gguf file, a known name, a hub id"
            )
