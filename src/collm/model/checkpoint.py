"""A checkpoint folder: its architecture, its tensors on demand, and its digest."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from collm.errors import ModelError
from collm.model.layout import EMBEDDING, LM_HEAD, tensor_shapes
from collm.model.spec import ModelSpec

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_DIGEST_CACHE = ".collm-digest.json"
_DIGESTED_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_FLOAT_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Written by old versions of transformers; recomputed from the configuration.
_IGNORED_SUFFIX = "rotary_emb.inv_freq"


class Checkpoint:
    """A folder with ``config.json`` and safetensors, opened lazily.

    Args:
        folder: Holds ``config.json`` and ``model.safetensors``, or the shards of an index.

    Raises:
        ModelError: The folder is incomplete, or its configuration is not supported.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "config.json").is_file():
            raise ModelError(f"{folder} is no checkpoint folder: it has no config.json")
        self.folder = folder
        self.spec = ModelSpec.from_config(
            read_json(folder / "config.json"),
            _read_optional_json(folder / "generation_config.json"),
        )
        self._shard_of = _map_shards(folder)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors in the files, sorted."""
        return tuple(sorted(self._shard_of))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the token embedding, which speaks for the checkpoint."""
        return _FLOAT_DTYPES[self._shape_and_dtype(EMBEDDING)[1]]

    def tensor(self, name: str) -> Tensor:
        """Return a tensor that maps the file: read only as it is used, and not to be written.

        Raises:
            ModelError: No tensor has this name.
        """
        tensor: Tensor = self._file_of(name).get_tensor(name)
        return tensor

    def verify(self) -> None:
        """Check names, shapes and dtypes against the architecture, reading headers only.

        Raises:
            ModelError: Tensors are missing, unexpected, misshapen or not floating point.
        """
        expected = tensor_shapes(self.spec)
        optional = {LM_HEAD} if self.spec.tie_embeddings else set()
        present = {name for name in self.names if not name.endswith(_IGNORED_SUFFIX)}
        problems = [f"{name} is missing" for name in expected if name not in present]
        problems += [f"{name} is unexpected" for name in sorted(present - set(expected) - optional)]
        for name in sorted(present & set(expected)):
            shape, dtype = self._shape_and_dtype(name)
            if shape != expected[name]:
                problems.append(f"{name} has shape {list(shape)}, not {list(expected[name])}")
            if dtype not in _FLOAT_DTYPES:
                problems.append(f"{name} is {dtype}, not one of {', '.join(_FLOAT_DTYPES)}")
        if problems:
            shown = "; ".join(problems[:5])
            raise ModelError(f"{self.folder} has {len(problems)} wrong tensors: {shown}")

    @cached_property
    def digest(self) -> str:
        """SHA-256 over weights, configuration, tokenizer and chat template.

        Reading all weights takes seconds per gigabyte, so the result is kept in the folder (where
        that is writable) and reused while every file keeps its size and modification time.
        """
        files = sorted({*self._shard_of.values(), *self._present(_DIGESTED_FILES)})
        stamps = {name: _stamp(self.folder / name) for name in files}
        cache = self.folder / _DIGEST_CACHE
        cached = _read_optional_json(cache)
        if cached is not None and cached.get("stamps") == stamps:
            return str(cached["digest"])
        digest = _digest_files(self.folder, files)
        _write_cache(cache, {"digest": digest, "stamps": stamps})
        return digest

    def base_digest(self, quantization: str | None) -> str:
        """Return the digest of the base that is served: rounded weights are others."""
        if quantization is None:
            return self.digest
        return hashlib.sha256(f"{self.digest} {quantization}".encode()).hexdigest()

    def _present(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if (self.folder / name).is_file()]

    def _shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], str]:
        header = self._file_of(name).get_slice(name)
        return tuple(header.get_shape()), header.get_dtype()

    def _file_of(self, name: str) -> Any:
        if name not in self._shard_of:
            raise ModelError(f"{self.folder} has no tensor {name}")
        return self._open_files[self._shard_of[name]]

    @cached_property
    def _open_files(self) -> Mapping[str, Any]:
        shards = sorted(set(self._shard_of.values()))
        return {shard: _open_safetensors(self.folder / shard) for shard in shards}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises ``ModelError`` when the file holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object")
    return value


def _read_optional_json(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.is_file() else None


def _map_shards(folder: Path) -> dict[str, str]:
    """Map each tensor's name to the file that holds it."""
    if (folder / _SINGLE_FILE).is_file():
        return dict.fromkeys(_open_safetensors(folder / _SINGLE_FILE).keys(), _SINGLE_FILE)
    if not (folder / _INDEX_FILE).is_file():
        raise ModelError(f"{folder} holds neither {_SINGLE_FILE} nor {_INDEX_FILE}")
    weight_map = read_json(folder / _INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(f"{folder / _INDEX_FILE} has no weight_map")
    for shard in sorted({str(shard) for shard in weight_map.values()}):
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise ModelError(f"{folder / _INDEX_FILE} names {shard!r}, which is not in the folder")
    return {str(name): str(shard) for name, shard in weight_map.items()}


def _open_safetensors(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _digest_files(folder: Path, names: list[str]) -> str:
    total = hashlib.sha256()
    for name in names:
        with (folder / name).open("rb") as file:
            total.update(f"{name}\n{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def _write_cache(path: Path, value: Mapping[str, Any]) -> None:
    """Write a small file that may be lost but never half there; read-only folders go without."""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    except OSError:
        return
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(value, file)
    Path(temporary).replace(path)
