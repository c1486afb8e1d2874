"""Configuration of the base model."""

from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from collm.errors import ConfigError
from collm.model.hub_id import parse_hub_id

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which base model is served, and in what number format."""

    source: str = DEFAULT_MODEL
    """Checkpoint folder, GGUF file, a name from ``collm models list``, or a hub id, with
    ``@revision`` behind it for a branch, tag or commit."""
    name: str | None = None
    """Name that requests ask for it by; by default the last part of ``source``, without a
    revision."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Number format of the base weights and of the keys and values."""
    quantization: Literal["int8", "int4"] | None = None
    """Round the base weights to 8 bits, or to 4 bits in groups of 32; null keeps ``dtype``.
    Adapters are not rounded; each belongs to the base it was trained on, rounded or not."""

    def __post_init__(self) -> None:
        if not self.source:
            raise ConfigError(
                "source is empty; allowed: a folder, a .gguf file, a known name, a hub id"
            )

    @property
    def served_name(self) -> str:
        """The name that requests ask for the base model by."""
        hub_id = parse_hub_id(self.source)
        source = self.source if hub_id is None else hub_id.model_id
        return self.name or PurePath(source).name.removesuffix(".gguf")
