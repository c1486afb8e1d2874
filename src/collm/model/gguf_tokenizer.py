"""Writes the tokenizer inside a GGUF file as ``tokenizer.json`` and its companions."""

from pathlib import Path

from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from collm.errors import ModelError
from collm.model.gguf_config import GgufMetadata

# Byte-level vocabularies whose way of splitting text transformers rebuilds, or save_tokenizer does.
# Any other would encode slightly differently from what the model was trained on, unnoticed.
_KNOWN_SPLITS = frozenset(
    ("default", "gpt-2", "llama-bpe", "llama3", "llama-v3", "qwen2", "smollm", "tekken")
)


def save_tokenizer(source: Path, metadata: GgufMetadata, folder: Path) -> None:
    """Save the tokenizer and chat template of a GGUF file into a checkpoint folder.

    Raises:
        ModelError: The file's tokenizer is damaged, or of a kind that cannot be rebuilt faithfully.
    """
    kind = metadata.get("tokenizer.ggml.model")
    split = metadata.get("tokenizer.ggml.pre") or "default"
    if kind not in ("gpt2", "llama") or (kind == "gpt2" and split not in _KNOWN_SPLITS):
        raise ModelError(
            f"GGUF: tokenizer {kind!r} with split {split!r} is not supported; need 'llama', or "
            f"'gpt2' with one of {', '.join(sorted(_KNOWN_SPLITS))}"
        )
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(source.parent, gguf_file=source.name)
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise ModelError(f"GGUF: the tokenizer cannot be rebuilt: {error}") from error
    if split == "smollm":
        # SmolLM's vocabulary was learned with every digit on its own.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    tokenizer.save_pretrained(folder)
