"""How rotary position embeddings are scaled, as data; torch-free."""

from dataclasses import dataclass

from collm.model.fields import Fields

DEFAULT_THETA = 10_000.0
"""Base of the rotary frequencies where a configuration names none, as published with RoPE."""

_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation: every frequency is divided by ``factor``."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1: low frequencies are divided by ``factor``, high ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN: interpolation by parts, and a factor on cosines and sines."""

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """Multiplies cos and sin; ``None`` derives it from ``factor``."""
    truncate: bool = True
    """Round the ramp's ends to whole dimensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding over the whole head: base and scaling."""

    theta: float = DEFAULT_THETA
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None = None


def parse_rope(config: Fields, max_position: int) -> RopeSpec:
    """Read the rotary embedding from a model configuration.

    Understands both ``rope_parameters`` (transformers 5) and ``rope_theta`` with ``rope_scaling``
    (before it).

    Args:
        config: The whole ``config.json``.
        max_position: Longest context; the original one where the scaling names none.

    Raises:
        ModelError: A rope type or field that is not supported.
    """
    fields = config.child("rope_parameters") or config.child("rope_scaling") or Fields({}, "")
    theta_owner = config if fields.get("rope_theta") is None else fields
    for owner in (config, fields):
        if owner.number("partial_rotary_factor", 1.0) != 1.0:
            raise owner.error("partial_rotary_factor", "1.0 (rotation of the whole head)")
    return RopeSpec(
        theta=theta_owner.number("rope_theta", DEFAULT_THETA),
        scaling=_parse_scaling(fields, max_position),
    )


def _parse_scaling(
    fields: Fields, max_position: int
) -> LinearScaling | Llama3Scaling | YarnScaling | None:
    key = "rope_type" if fields.get("rope_type") is not None else "type"
    kind = fields.choice(key, _ROPE_TYPES, "default")
    original = fields.integer("original_max_position_embeddings", max_position)
    if kind == "linear":
        return LinearScaling(fields.number("factor"))
    if kind == "llama3":
        return Llama3Scaling(
            factor=fields.number("factor"),
            low_freq_factor=fields.number("low_freq_factor"),
            high_freq_factor=fields.number("high_freq_factor"),
            original_max_position=original,
        )
    if kind == "yarn":
        return _parse_yarn(fields, original)
    return None


def _parse_yarn(fields: Fields, original_max_position: int) -> YarnScaling:
    for key in ("mscale", "mscale_all_dim"):
        if fields.get(key) is not None:
            raise fields.error(key, "none (DeepSeek's variant of YaRN is not supported)")
    has_attention_factor = fields.get("attention_factor") is not None
    return YarnScaling(
        factor=fields.number("factor"),
        original_max_position=original_max_position,
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        attention_factor=fields.number("attention_factor") if has_attention_factor else None,
        truncate=fields.flag("truncate", True),
    )
