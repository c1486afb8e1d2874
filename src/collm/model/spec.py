"""What a model's architecture is, as data read from its ``config.json``; torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from collm.errors import ModelError
from collm.model.fields import Fields
from collm.model.rope_spec import RopeSpec, parse_rope

Activation = Literal["silu", "gelu_tanh"]

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The architecture of a decoder of the Llama family; enough to build and check it."""

    architecture: str
    """Family, as ``model_type`` in ``config.json``: llama, mistral, qwen2 or qwen3."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeSpec
    max_position: int
    """Longest context in tokens."""
    tie_embeddings: bool
    """The output projection is the token embedding."""
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """RMSNorm over each head of q and k, before rotation."""
    activation: Activation
    sliding_windows: tuple[int | None, ...]
    """Per layer: a token sees itself and the ``window - 1`` tokens before it; ``None`` sees all."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """Tokens that end an answer; ``generation_config.json`` wins over ``config.json``."""

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
    ) -> "ModelSpec":
        """Parse a Hugging Face ``config.json``.

        Absent fields take the value that ``transformers`` gives them in that family.

        Args:
            config: The parsed ``config.json``.
            generation_config: The parsed ``generation_config.json``, if the checkpoint has one.

        Raises:
            ModelError: A field whose value this engine cannot serve; names it and what is allowed.
        """
        family = _family_of(config)
        fields = Fields({**family.defaults, **config}, "config.json")
        num_layers = fields.integer("num_hidden_layers")
        max_position = fields.integer("max_position_embeddings")
        heads = _parse_heads(fields)
        attention_bias = family.has_bias_fields and fields.flag("attention_bias", False)
        generation = Fields(generation_config or {}, "generation_config.json")
        eos_token_ids = _token_ids(generation, "eos_token_id") or _token_ids(fields, "eos_token_id")
        return cls(
            architecture=str(config["model_type"]),
            vocab_size=fields.integer("vocab_size"),
            hidden_size=fields.integer("hidden_size"),
            intermediate_size=fields.integer("intermediate_size"),
            num_layers=num_layers,
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope=parse_rope(fields, max_position),
            max_position=max_position,
            tie_embeddings=fields.flag("tie_word_embeddings", False),
            qkv_bias=family.always_qkv_bias or attention_bias,
            o_bias=attention_bias,
            mlp_bias=family.has_mlp_bias_field and fields.flag("mlp_bias", False),
            qk_norm=family.qk_norm,
            activation=_ACTIVATIONS[fields.choice("hidden_act", _ACTIVATIONS, "silu")],
            sliding_windows=_parse_windows(fields, family.windows, num_layers),
            bos_token_id=next(iter(_token_ids(fields, "bos_token_id")), None),
            eos_token_ids=eos_token_ids,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What ``transformers`` fixes in code rather than in a family's ``config.json``."""

    causal_lm: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    always_qkv_bias: bool = False
    has_bias_fields: bool = False
    has_mlp_bias_field: bool = False
    qk_norm: bool = False
    windows: Literal["none", "all", "by_layer"] = "none"


_QWEN_DEFAULTS = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}

_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(causal_lm="LlamaForCausalLM", has_bias_fields=True, has_mlp_bias_field=True),
    "mistral": _Family(
        causal_lm="MistralForCausalLM",
        defaults={"num_key_value_heads": 8, "sliding_window": 4096},
        windows="all",
    ),
    "qwen2": _Family(
        causal_lm="Qwen2ForCausalLM",
        defaults=_QWEN_DEFAULTS,
        always_qkv_bias=True,
        windows="by_layer",
    ),
    "qwen3": _Family(
        causal_lm="Qwen3ForCausalLM",
        defaults={**_QWEN_DEFAULTS, "head_dim": 128},
        has_bias_fields=True,
        qk_norm=True,
        windows="by_layer",
    ),
}


def _family_of(config: Mapping[str, Any]) -> _Family:
    fields = Fields(config, "config.json")
    family = _FAMILIES[fields.choice("model_type", _FAMILIES)]
    if config.get("architectures") not in (None, [], [family.causal_lm]):
        raise fields.error("architectures", f"[{family.causal_lm!r}]")
    if config.get("quantization_config") is not None:
        raise fields.error("quantization_config", "none (float16, bfloat16 or float32 weights)")
    return family


@dataclass(frozen=True, slots=True)
class _Heads:
    num_heads: int
    num_kv_heads: int
    head_dim: int


def _parse_heads(fields: Fields) -> _Heads:
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads = {num_heads}")
    if fields.get("head_dim") is None and hidden_size % num_heads:
        raise fields.error("num_attention_heads", f"a divisor of hidden_size = {hidden_size}")
    head_dim = fields.integer("head_dim", max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise ModelError(f"config.json: head_dim = {head_dim} must be even for rotary embedding")
    return _Heads(num_heads, num_kv_heads, head_dim)


def _parse_windows(
    fields: Fields, kind: Literal["none", "all", "by_layer"], num_layers: int
) -> tuple[int | None, ...]:
    has_window = fields.get("sliding_window") is not None
    if kind == "none" or not has_window:
        return (None,) * num_layers
    if kind == "all":
        return (fields.integer("sliding_window"),) * num_layers
    if not fields.flag("use_sliding_window", False):
        return (None,) * num_layers
    window = fields.integer("sliding_window")
    return tuple(window if slides else None for slides in _sliding_layers(fields, num_layers))


def _sliding_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    layer_types = fields.get("layer_types")
    if layer_types is None:
        # Zero is allowed here, so this is not Fields.integer.
        first = fields.get("max_window_layers")
        if isinstance(first, bool) or not isinstance(first, int):
            raise fields.error("max_window_layers", "an integer")
        return tuple(layer >= first for layer in range(num_layers))
    known = {"full_attention": False, "sliding_attention": True}
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise fields.error("layer_types", f"a list of {num_layers} names")
    if not all(isinstance(name, str) and name in known for name in layer_types):
        raise fields.error("layer_types", f"names out of {', '.join(known)}")
    return tuple(known[name] for name in layer_types)


def _token_ids(fields: Fields, key: str) -> tuple[int, ...]:
    value = fields.get(key)
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise fields.error(key, "a token id or a list of them")
    return tuple(cast(list[int], ids))
