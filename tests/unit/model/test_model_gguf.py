import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from collm.errors import ModelError
from collm.model.checkpoint import Checkpoint
from collm.model.gguf_import import ignore_progress, import_gguf
from collm.model.rope_spec import Llama3Scaling
from collm.model.spec import ModelSpec
from collm.model.tokenizer import Tokenizer
from factories.checkpoints import FAMILIES, Family
from factories.gguf_files import write_gguf


def convert(source: Path) -> Checkpoint:
    folder = source.parent / "converted"
    folder.mkdir()
    import_gguf(source, folder, ignore_progress)
    checkpoint = Checkpoint(folder)
    checkpoint.verify()
    return checkpoint


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        # A GGUF does not keep Mistral's window: the format says llama.
        *((family, {}) for family in FAMILIES),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    ],
)
def test_converted_weights_equal_the_original_ones_in_bfloat16(
    family: Family, fields: dict[str, Any], tmp_path: Path
) -> None:
    model = write_gguf(tmp_path / "model.gguf", family, **fields)
    checkpoint = convert(tmp_path / "model.gguf")
    weights = model.state_dict()
    for name in checkpoint.names:
        assert torch.equal(checkpoint.tensor(name), weights[name].bfloat16()), name
    original = ModelSpec.from_config(model.config.to_dict())
    for field in ("hidden_size", "head_dim", "num_kv_heads", "qkv_bias", "qk_norm", "rope"):
        assert getattr(checkpoint.spec, field) == getattr(original, field), field
    assert checkpoint.spec.tie_embeddings == original.tie_embeddings
    assert checkpoint.spec.rms_norm_eps == original.rms_norm_eps


def test_converted_tokenizer_encodes_as_the_original_one(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "llama")
    checkpoint = convert(tmp_path / "model.gguf")
    original = PreTrainedTokenizerFast.from_pretrained(tmp_path / "tokenizer")
    tokenizer = Tokenizer(checkpoint.folder, checkpoint.spec.eos_token_ids)
    text = "The quick fox's 123 swaps,  Grüße!\n"
    assert tokenizer.encode(text) == original.encode(text)
    chat = [{"role": "user", "content": text}]
    expected = original.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert tokenizer.encode_chat(chat) == expected
    assert checkpoint.spec.eos_token_ids == (2,)


def llama3_divisors(num_pairs: int, theta: float) -> np.ndarray[Any, Any]:
    """Llama 3.1's published scaling, written as llama.cpp's converter does."""
    divisors = []
    for pair in range(num_pairs):
        wavelength = 2 * np.pi * theta ** (pair / num_pairs)
        smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
        kept = float(np.clip(smooth, 0.0, 1.0))
        divisors.append(1.0 / ((1.0 - kept) / 8.0 + kept))
    return np.array(divisors, dtype=np.float32)


def test_llama3_scaling_is_recognised_from_its_divisors(tmp_path: Path) -> None:
    rope = {"rope_theta": 5e5, "rope_type": "default"}
    divisors = llama3_divisors(32, 5e5)
    write_gguf(
        tmp_path / "m.gguf", "llama", head_dim=64, rope_parameters=rope, rope_divisors=divisors
    )
    checkpoint = convert(tmp_path / "m.gguf")
    assert checkpoint.spec.rope.scaling == Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
    )


def test_other_rotary_divisors_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", rope_divisors=np.full(8, 3.0, dtype=np.float32))
    with pytest.raises(ModelError, match="rope_freqs"):
        convert(tmp_path / "m.gguf")


def test_unknown_architecture_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="'mamba' is not supported; need one of llama"):
        convert(tmp_path / "m.gguf")


def test_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"not a model" * 100)
    with pytest.raises(ModelError, match="as GGUF"):
        convert(tmp_path / "m.gguf")


def test_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "m.gguf"
    write_gguf(source, "llama")
    source.write_bytes(source.read_bytes().replace(b"<|im_end|>", b"<|im_end|\xff", 1))
    with pytest.raises(ModelError, match="tokenizer cannot be rebuilt: .* invalid start byte"):
        convert(source)


def test_config_is_readable_by_transformers_names(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "qwen3")
    config = json.loads((convert(tmp_path / "m.gguf").folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["rms_norm_eps"] == 1e-6
