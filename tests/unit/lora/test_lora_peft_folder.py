"""Folders that cannot be served are refused with an error that names what is wrong."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from collm.errors import AdapterError
from collm.lora.peft_folder import load_peft, save_peft
from collm.model.spec import ModelSpec
from factories.checkpoints import tiny_config
from factories.engines import random_adapter

SPEC = ModelSpec.from_config(tiny_config("llama").to_dict())
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_peft(random_adapter(SPEC, rank=4), tmp_path, "tiny")
    return tmp_path


def change_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | fields))


def change_weights(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace tensors by the end of their name below q_proj; ``None`` removes one."""
    kept = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
    for name, tensor in tensors.items():
        kept.pop(f"{Q_PROJ}.{name}.weight", None)
        if tensor is not None:
            kept[f"{Q_PROJ}.{name}.weight"] = tensor
    save_file(kept, folder / WEIGHTS)


def refuse(folder: Path, *words: str) -> None:
    with pytest.raises(AdapterError) as caught:
        load_peft(folder, SPEC)
    for word in words:
        assert re.search(re.escape(word), str(caught.value)), (word, str(caught.value))


def test_folder_that_was_saved_is_read(folder):
    state = load_peft(folder, SPEC)
    assert torch.equal(state.flat, random_adapter(SPEC, rank=4).flat)


def test_missing_folder_and_missing_config_are_refused(folder):
    refuse(folder / "nowhere", CONFIG, "does not exist")
    (folder / CONFIG).unlink()
    refuse(folder, CONFIG, "does not exist")


def test_a_file_in_place_of_the_folder_is_refused(folder):
    refuse(folder / WEIGHTS, CONFIG, "cannot be read")


def test_pickled_weights_are_never_opened(folder):
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    refuse(folder, WEIGHTS, "only safetensors")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[1]", b"null"])
def test_config_that_is_no_json_object_is_refused(folder, content):
    (folder / CONFIG).write_bytes(content)
    refuse(folder, CONFIG)


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", b"\x80\x04pickle"])
def test_weights_that_are_no_safetensors_are_refused(folder, content):
    (folder / WEIGHTS).write_bytes(content)
    refuse(folder, WEIGHTS, "no valid safetensors")


def test_truncated_weights_are_refused(folder):
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:-100])
    refuse(folder, WEIGHTS, "no valid safetensors")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peft_type", "IA3"),
        ("peft_type", None),
        ("use_dora", True),
        ("bias", "all"),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("modules_to_save", ["lm_head"]),
        ("fan_in_fan_out", True),
        ("layer_replication", [[0, 2], [1, 2]]),
        ("trainable_token_indices", [1, 2]),
        ("target_parameters", ["mlp.experts"]),
        ("alora_invocation_tokens", [5]),
        ("kasa_config", {"beta": 1e-4}),
        ("use_rslora", "false"),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "olora"),
        ("r", 0),
        ("r", None),
        ("r", "8"),
        ("r", True),
        ("lora_alpha", -1),
        ("lora_alpha", float("nan")),
        ("lora_alpha", float("inf")),
        ("alpha_pattern", [1]),
        ("alpha_pattern", {"q_proj": 0}),
        ("alpha_pattern", {"q_proj(": 1}),
        ("rank_pattern", {"q_proj": "4"}),
    ],
)
def test_unsupported_field_is_refused_by_name(folder, field, value):
    change_config(folder, **{field: value})
    refuse(folder, CONFIG, field)


@pytest.mark.parametrize(("field", "value"), [("r", 10**9), ("lora_alpha", 1e300)])
def test_refusal_of_a_number_says_what_is_allowed(folder, field, value):
    change_config(folder, **{field: value})
    refuse(folder, field, "above 0, below 1e9")


def test_refusal_quotes_a_long_value_in_part(folder):
    change_config(folder, modules_to_save=["x" * 100_000])
    with pytest.raises(AdapterError) as caught:
        load_peft(folder, SPEC)
    assert len(str(caught.value)) < 1_000


def test_adapter_without_factors_is_refused(folder):
    save_file({}, folder / WEIGHTS)
    refuse(folder, "no LoRA factors")


@pytest.mark.parametrize("half", ["lora_A", "lora_B"])
def test_missing_half_is_refused(folder, half):
    change_weights(folder, **{half: None})
    refuse(folder, "missing", "self_attn.q_proj")


@pytest.mark.parametrize(
    "tensors",
    [
        {"lora_A": torch.ones(4, 63)},
        {"lora_B": torch.ones(65, 4)},
        {"lora_B": torch.ones(64, 3)},
        {"lora_A": torch.ones(64, 4), "lora_B": torch.ones(4, 64)},
        {"lora_A": torch.ones(4, 64, 1)},
        {"lora_A": torch.tensor(1.0)},
        {"lora_A": torch.ones(64), "lora_B": torch.ones(64)},
    ],
)
def test_wrong_shapes_are_refused(folder, tensors):
    change_weights(folder, **tensors)
    refuse(folder, "self_attn.q_proj", "[rank, 64] and [64, rank]")


@pytest.mark.parametrize("rank", [0, 513])
def test_rank_out_of_range_is_refused_before_memory_is_reserved(folder, rank):
    change_weights(folder, lora_A=torch.ones(rank, 64), lora_B=torch.ones(64, rank))
    change_config(folder, rank_pattern={"layers.0.self_attn.q_proj": max(rank, 1)})
    refuse(folder, "q_proj", f"rank {rank}")


def test_rank_that_contradicts_the_configuration_is_refused(folder):
    change_weights(folder, lora_A=torch.ones(2, 64), lora_B=torch.ones(64, 2))
    refuse(folder, "q_proj", "rank 2", "says 4")
    change_config(folder, rank_pattern={"layers.0.self_attn.q_proj": 2})
    load_peft(folder, SPEC)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_values_are_refused_by_module(folder, value):
    b = torch.ones(64, 4)
    b[3, 1] = value
    change_weights(folder, lora_B=b)
    refuse(folder, "non-finite", "layers.0.self_attn.q_proj")


def test_scale_that_overflows_is_refused(folder):
    change_weights(folder, lora_B=torch.full((64, 4), 1e38))
    change_config(folder, lora_alpha=1e8)
    refuse(folder, "non-finite")


@pytest.mark.parametrize(
    "module",
    [
        "base_model.model.model.layers.2.self_attn.q_proj",
        "base_model.model.model.layers.0.self_attn.qkv_proj",
        "base_model.model.lm_head",
        "base_model.model.transformer.h.0.attn.c_attn",
    ],
)
def test_modules_that_the_model_lacks_are_refused(folder, module):
    tensors = {f"{module}.lora_A.weight": torch.ones(4, 64)}
    tensors[f"{module}.lora_B.weight"] = torch.ones(64, 4)
    save_file(tensors, folder / WEIGHTS)
    refuse(folder, "does not have", module.removeprefix("base_model.model."))


@pytest.mark.parametrize(
    "key",
    [
        f"{Q_PROJ}.lora_magnitude_vector",
        f"{Q_PROJ}.lora_B.bias",
        f"{Q_PROJ}.base_layer.weight",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "lora",
    ],
)
def test_tensors_that_are_no_lora_factors_are_refused(folder, key):
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file({**tensors, key: torch.ones(1)}, folder / WEIGHTS)
    refuse(folder, "unexpected tensor", key)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_factors_that_are_no_real_numbers_are_refused(folder, dtype):
    change_weights(folder, lora_A=torch.ones(4, SPEC.hidden_size, dtype=dtype))
    refuse(folder, f"{Q_PROJ}.lora_A.weight", str(dtype).removeprefix("torch."))


def test_factors_that_are_there_twice_are_refused(folder):
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
    again = f"{Q_PROJ}.lora_A.weight".removeprefix("base_model.model.")
    save_file({**tensors, again: tensors[f"{Q_PROJ}.lora_A.weight"] + 1}, folder / WEIGHTS)
    refuse(folder, again, "twice")


def test_half_precision_factors_are_read_as_float32(folder):
    tensors = load_file(folder / WEIGHTS)
    save_file({name: t.to(torch.bfloat16) for name, t in tensors.items()}, folder / WEIGHTS)
    state = load_peft(folder, SPEC)
    expected = random_adapter(SPEC, rank=4).flat
    assert state.flat.dtype == torch.float32
    assert torch.equal(state.flat, expected.to(torch.bfloat16).float())
