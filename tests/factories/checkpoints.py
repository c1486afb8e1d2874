"""Tiny random checkpoints of every served family, as transformers saves them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

Family = Literal["llama", "mistral", "qwen2", "qwen3"]
FAMILIES: tuple[Family, ...] = ("llama", "mistral", "qwen2", "qwen3")

VOCAB_SIZE = 512
EOS_TOKEN_ID = 2
SLIDING_WINDOW = 8

_SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_TEXT = [
    "The quick brown fox jumps over the lazy dog while the cat sleeps in the sun.",
    "What is the capital of France? The capital of France is Paris, on the river Seine.",
    "A replica serves requests and trains on the same weights; nothing is lost in a swap.",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))\n",
]

_FAMILY_CLASSES: dict[Family, tuple[type[Any], Callable[[Any], PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}

_FAMILY_FIELDS: dict[Family, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": SLIDING_WINDOW},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
}


def tiny_config(family: Family, **overrides: Any) -> Any:
    """Two layers, hidden size 64, grouped-query attention; ``overrides`` are config fields."""
    config_class, _ = _FAMILY_CLASSES[family]
    fields: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
        "bos_token_id": 1,
        "eos_token_id": EOS_TOKEN_ID,
        "pad_token_id": 0,
    }
    return config_class(**(fields | _FAMILY_FIELDS[family] | overrides))


def tiny_model(family: Family, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random float32 model whose norms and biases are random as well, so that each matters."""
    _, model_class = _FAMILY_CLASSES[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(tiny_config(family, **overrides)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def tiny_checkpoint(
    folder: Path,
    family: Family,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **fields: Any,
) -> Path:
    """Save a tiny random model with a tokenizer into ``folder/FAMILY`` and return that."""
    path = folder / family
    tiny_model(family, seed, **fields).to(dtype).save_pretrained(path)
    tiny_tokenizer(path)
    return path


def tiny_tokenizer(folder: Path) -> None:
    """Save a byte-level BPE tokenizer with a ChatML template: any text encodes, within 512 ids."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=_SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_TEXT, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHATML,
    )
    tokenizer.save_pretrained(folder)
