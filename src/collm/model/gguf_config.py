"""Reads a GGUF file's metadata and writes it as Hugging Face configurations."""

from typing import Any

import gguf
import numpy as np
import torch

from collm.errors import ModelError
from collm.model.rope import inverse_frequencies
from collm.model.rope_spec import DEFAULT_THETA, Llama3Scaling, RopeSpec

_CAUSAL_LMS = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


class GgufMetadata:
    """The metadata of one GGUF file.

    Args:
        reader: The opened file.

    Raises:
        ModelError: The file's architecture is not supported.
    """

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.architecture = str(self.get("general.architecture"))
        if self.architecture not in _CAUSAL_LMS:
            raise ModelError(
                f"GGUF: general.architecture = {self.architecture!r} is not supported; "
                f"need one of {', '.join(_CAUSAL_LMS)}"
            )

    def get(self, key: str) -> Any:
        """Return a value by its full key, ``None`` when absent."""
        return self._fields[key].contents() if key in self._fields else None

    def of_model(self, key: str) -> Any:
        """Return a value by its key below the architecture's name, ``None`` when absent."""
        return self.get(f"{self.architecture}.{key}")

    def tensor(self, name: str) -> Any:
        """Return a tensor's entry, ``None`` when absent."""
        return self._tensors.get(name)

    def required(self, key: str) -> Any:
        """Return a value by its key below the architecture's name.

        Raises:
            ModelError: The file has no such value.
        """
        value = self.of_model(key)
        if value is None:
            raise ModelError(f"GGUF: {self.architecture}.{key} is missing")
        return value


def model_config(metadata: GgufMetadata) -> dict[str, Any]:
    """Write the architecture as the ``config.json`` that ``transformers`` would have.

    Raises:
        ModelError: A value is missing or cannot be expressed.
    """
    embedding = metadata.tensor("token_embd.weight")
    if embedding is None:
        raise ModelError("GGUF: tensor token_embd.weight is missing")
    num_heads = metadata.required("attention.head_count")
    hidden_size = metadata.required("embedding_length")
    head_dim = metadata.of_model("attention.key_length") or hidden_size // num_heads
    return {
        "architectures": [_CAUSAL_LMS[metadata.architecture]],
        "model_type": metadata.architecture,
        "dtype": "bfloat16",
        # A GGUF lists dimensions innermost first.
        "vocab_size": int(embedding.shape[1]),
        "hidden_size": hidden_size,
        "intermediate_size": metadata.required("feed_forward_length"),
        "num_hidden_layers": metadata.required("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.of_model("attention.head_count_kv") or num_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _shortest(metadata.required("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": metadata.required("context_length"),
        "rope_parameters": _rope_parameters(metadata, head_dim),
        "tie_word_embeddings": metadata.tensor("output.weight") is None,
        "attention_bias": _has_bias(metadata, "attn_output"),
        "mlp_bias": _has_bias(metadata, "ffn_up"),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }


def generation_config(metadata: GgufMetadata) -> dict[str, Any]:
    """Write the tokens that begin and end a text as ``generation_config.json`` has them."""
    # eot ends a turn where eos ends a document; a chat model stops at either.
    ids = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(dict.fromkeys(i for i in ids if i is not None)),
    }


def _has_bias(metadata: GgufMetadata, part: str) -> bool:
    return metadata.tensor(f"blk.0.{part}.bias") is not None


def _rope_parameters(metadata: GgufMetadata, head_dim: int) -> dict[str, Any]:
    rotated = metadata.of_model("rope.dimension_count")
    if rotated not in (None, head_dim):
        raise ModelError(f"GGUF: rope.dimension_count = {rotated} is not the head's {head_dim}")
    theta = _shortest(metadata.of_model("rope.freq_base") or DEFAULT_THETA)
    kind = metadata.of_model("rope.scaling.type") or "none"
    if metadata.tensor("rope_freqs.weight") is not None:
        return {"rope_theta": theta, **_llama3_parameters(metadata, theta, head_dim)}
    if kind == "none":
        return {"rope_theta": theta, "rope_type": "default"}
    if kind not in ("linear", "yarn"):
        raise ModelError(f"GGUF: rope.scaling.type = {kind!r}; need none, linear or yarn")
    scaling = {"rope_type": kind, "factor": _shortest(metadata.required("rope.scaling.factor"))}
    if kind == "yarn":
        original = metadata.required("rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = original
    return {"rope_theta": theta, **scaling}


def _llama3_parameters(metadata: GgufMetadata, theta: float, head_dim: int) -> dict[str, Any]:
    """Recognise Llama 3's scaling, of which a GGUF keeps only the resulting divisors."""
    entry = metadata.tensor("rope_freqs.weight")
    divisors = torch.from_numpy(np.array(entry.data, dtype=np.float32))
    scaling = Llama3Scaling(
        factor=float(divisors.max()),
        # The values of every published Llama 3 model; checked below.
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position=8192,
    )
    plain, _ = inverse_frequencies(RopeSpec(theta=theta), head_dim)
    scaled, _ = inverse_frequencies(RopeSpec(theta=theta, scaling=scaling), head_dim)
    if divisors.shape != plain.shape or not torch.allclose(plain / divisors, scaled, rtol=1e-3):
        raise ModelError("GGUF: tensor rope_freqs.weight does not hold Llama 3's rotary scaling")
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position,
    }


def _shortest(value: float) -> float:
    """Return the shortest decimal for a float32, so that 1e-05 does not become 9.99…e-06."""
    return float(str(np.float32(value)))
