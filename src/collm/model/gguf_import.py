"""Turns a GGUF file into a checkpoint folder: bfloat16 safetensors, tokenizer, chat template."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from collm.errors import ModelError
from collm.model.gguf_config import GgufMetadata, generation_config, model_config
from collm.model.gguf_tokenizer import save_tokenizer
from collm.model.layout import tensor_shapes
from collm.model.spec import ModelSpec

Progress = Callable[[str, float], None]
"""Told what is being done and the share of it that is done, in [0, 1]."""


def ignore_progress(activity: str, done_share: float) -> None:
    """Tell nobody."""


def import_gguf(source: Path, folder: Path, progress: Progress) -> None:
    """Convert a GGUF file into a checkpoint folder.

    Args:
        source: The GGUF file.
        folder: Existing folder to write into.
        progress: Called as tensors are converted.

    Raises:
        ModelError: The file is no GGUF, or holds a model that cannot be served.
    """
    try:
        reader = gguf.GGUFReader(source)
    except (OSError, ValueError, IndexError) as error:
        raise ModelError(f"cannot read {source} as GGUF: {error}") from error
    metadata = GgufMetadata(reader)
    config = model_config(metadata)
    spec = ModelSpec.from_config(config)
    tensors = _convert_tensors(reader, metadata.architecture, spec, progress)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_tokenizer(source, metadata, folder)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config(metadata))


def _convert_tensors(
    reader: Any, architecture: str, spec: ModelSpec, progress: Progress
) -> dict[str, Tensor]:
    sources = {tensor.name: tensor for tensor in reader.tensors}
    shapes = tensor_shapes(spec)
    names = _gguf_names(architecture, spec, shapes)
    missing = [name for name in names.values() if name not in sources]
    # Llama 3's rotary scaling, which the configuration has taken in.
    unexpected = sorted(set(sources) - set(names.values()) - {"rope_freqs.weight"})
    if missing or unexpected:
        raise ModelError(f"GGUF tensors missing: {missing[:5]}; unexpected: {unexpected[:5]}")
    tensors = {}
    for done, (name, shape) in enumerate(shapes.items(), start=1):
        array = _dequantize(sources[names[name]])
        if array.shape != shape:
            raise ModelError(f"GGUF tensor {names[name]} is {array.shape}, not {shape}")
        if architecture == "llama":
            array = _undo_rotary_interleaving(name, array, spec)
        tensors[name] = torch.tensor(array, dtype=torch.bfloat16)
        progress("converting", done / len(shapes))
    return tensors


def _gguf_names(
    architecture: str, spec: ModelSpec, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    """Map Hugging Face tensor names to those of a GGUF file."""
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    name_map = gguf.get_tensor_name_map(kinds[architecture], spec.num_layers)
    return {name: name_map.get_name(name, (".weight", ".bias")) for name in shapes}


def _dequantize(tensor: Any) -> np.ndarray[Any, Any]:
    try:
        array: np.ndarray[Any, Any] = gguf.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        kind = tensor.tensor_type.name
        raise ModelError(f"GGUF tensor {tensor.name} has unsupported type {kind}") from error
    return array


def _undo_rotary_interleaving(
    name: str, array: np.ndarray[Any, Any], spec: ModelSpec
) -> np.ndarray[Any, Any]:
    """Put the rows of q and k back into rotate-half order.

    GGUF files of the llama architecture rotate neighbouring rows (0, 1), (2, 3), …; Hugging Face
    rotates (0, d/2), (1, d/2 + 1), … within each head of d rows.
    """
    if ".q_proj." in name:
        num_heads = spec.num_heads
    elif ".k_proj." in name:
        num_heads = spec.num_kv_heads
    else:
        return array
    pairs = array.reshape(num_heads, spec.head_dim // 2, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
