"""Tiny GGUF files, written the way llama.cpp's converter lays them out."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from factories.checkpoints import EOS_TOKEN_ID, Family, tiny_model, tiny_tokenizer


def write_gguf(
    path: Path, family: Family, *, rope_divisors: np.ndarray[Any, Any] | None = None, **fields: Any
) -> Any:
    """Write a tiny random model as a float32 GGUF file and return the transformers model."""
    model = tiny_model(family, **fields)
    config = model.config
    architecture = "llama" if family == "mistral" else family
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim(config))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    _add_tokenizer(writer, path.parent / "tokenizer")
    _add_tensors(writer, model, architecture)
    if rope_divisors is not None:
        writer.add_tensor("rope_freqs.weight", rope_divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    tiny_tokenizer(folder)
    saved = json.loads((folder / "tokenizer.json").read_text())
    vocab = sorted(saved["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["content"] for token in saved["added_tokens"]}
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_types([control if token in special else normal for token, _ in vocab])
    writer.add_token_merges([" ".join(pair) for pair in saved["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(EOS_TOKEN_ID)
    writer.add_pad_token_id(0)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())


def _add_tensors(writer: gguf.GGUFWriter, model: Any, architecture: str) -> None:
    config = model.config
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    name_map = gguf.get_tensor_name_map(kinds[architecture], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        if architecture == "llama" and "q_proj" in name:
            array = _interleave(array, config.num_attention_heads)
        if architecture == "llama" and "k_proj" in name:
            array = _interleave(array, config.num_key_value_heads)
        writer.add_tensor(name_map.get_name(name, (".weight", ".bias")), array)


def _interleave(array: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Order each head's rows 0, d/2, 1, d/2 + 1, … as llama.cpp's converter does."""
    rows = np.arange(array.shape[0]).reshape(num_heads, -1)
    half = rows.shape[1] // 2
    order = np.stack([rows[:, :half], rows[:, half:]], axis=2).reshape(-1)
    return np.ascontiguousarray(array[order])
