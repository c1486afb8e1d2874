from typing import Any

import pytest

from collm.errors import ModelError
from collm.model.layout import tensor_shapes
from collm.model.rope_spec import LinearScaling, Llama3Scaling, YarnScaling
from collm.model.spec import ModelSpec
from factories.checkpoints import FAMILIES, SLIDING_WINDOW, Family, tiny_config, tiny_model


def saved_config(family: Family, **overrides: Any) -> dict[str, Any]:
    return {**tiny_config(family, **overrides).to_dict()}


@pytest.mark.parametrize("family", FAMILIES)
def test_config_saved_by_transformers_is_understood(family: Family) -> None:
    config = tiny_config(family)
    spec = ModelSpec.from_config(config.to_dict())
    assert spec.architecture == family
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads) == (2, 4, 2)
    assert spec.head_dim == (32 if family == "qwen3" else 16)
    assert spec.tie_embeddings == config.tie_word_embeddings
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2,))
    assert spec.qk_norm == (family == "qwen3")
    assert spec.qkv_bias == (family == "qwen2")
    assert spec.sliding_windows == ((SLIDING_WINDOW if family == "mistral" else None),) * 2


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        *((family, {}) for family in FAMILIES),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
        ("llama", {"head_dim": 8}),
        ("qwen3", {"attention_bias": True}),
    ],
)
def test_tensor_shapes_equal_those_of_the_transformers_model(
    family: Family, fields: dict[str, Any]
) -> None:
    model = tiny_model(family, **fields)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    expected = {n: tuple(t.shape) for n, t in model.state_dict().items() if n not in tied}
    assert tensor_shapes(ModelSpec.from_config(model.config.to_dict())) == expected


def test_config_from_before_transformers_5_is_understood() -> None:
    config = saved_config("llama")
    del config["rope_parameters"]
    old_scaling = {"type": "linear", "factor": 4.0}
    spec = ModelSpec.from_config(config | {"rope_theta": 5e5, "rope_scaling": old_scaling})
    assert spec.rope.theta == 5e5
    assert spec.rope.scaling == LinearScaling(4.0)


def test_config_with_neither_rope_field_uses_the_published_base() -> None:
    config = saved_config("llama")
    del config["rope_parameters"]
    spec = ModelSpec.from_config(config)
    assert (spec.rope.theta, spec.rope.scaling) == (10_000.0, None)


def test_llama3_and_yarn_scalings_are_read_with_their_original_context() -> None:
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    llama3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    spec = ModelSpec.from_config(saved_config("llama") | {"rope_parameters": llama3})
    assert spec.rope.scaling == Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=64
    )
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}
    spec = ModelSpec.from_config(saved_config("qwen3") | {"rope_parameters": yarn})
    assert spec.rope.scaling == YarnScaling(factor=4.0, original_max_position=512)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"use_sliding_window": False, "sliding_window": 8}, (None, None)),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, (None, 8)),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, (8, 8)),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            (8, None),
        ),
    ],
)
def test_qwen_sliding_windows_follow_transformers(
    fields: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    # What a hub config has, and what transformers writes after filling in layer_types.
    config = saved_config("qwen2") | {"layer_types": None} | fields
    assert ModelSpec.from_config(config).sliding_windows == windows
    assert ModelSpec.from_config(saved_config("qwen2", **fields)).sliding_windows == windows


def test_generation_config_decides_what_ends_an_answer() -> None:
    spec = ModelSpec.from_config(saved_config("llama"), {"eos_token_id": [5, 7]})
    assert spec.eos_token_ids == (5, 7)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("model_type", "gpt2", "llama"),
        ("model_type", ["llama"], "llama"),
        ("rms_norm_eps", 10**400, "positive, finite number"),
        ("architectures", ["LlamaForSequenceClassification"], "LlamaForCausalLM"),
        ("hidden_act", "relu", "silu"),
        ("quantization_config", {"quant_method": "awq"}, "bfloat16"),
        ("rope_parameters", {"rope_type": "longrope"}, "yarn"),
        ("partial_rotary_factor", 0.5, "1.0"),
        ("hidden_size", "64", "positive integer"),
        ("num_hidden_layers", 0, "positive integer"),
        ("num_key_value_heads", 3, "divisor"),
        ("tie_word_embeddings", "yes", "true or false"),
        ("eos_token_id", "</s>", "token id"),
        ("vocab_size", None, "missing"),
    ],
)
def test_what_is_not_understood_is_named_with_what_is(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ModelError) as caught:
        ModelSpec.from_config(saved_config("llama") | {field: value})
    inner = "rope_type" if field == "rope_parameters" else field
    assert inner in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize("layer_types", ["full", ["full_attention"], ["linear_attention"] * 2])
def test_unknown_layer_types_are_refused(layer_types: Any) -> None:
    fields = {"use_sliding_window": True, "sliding_window": 8, "layer_types": layer_types}
    with pytest.raises(ModelError, match="layer_types"):
        ModelSpec.from_config(saved_config("qwen3") | fields)
