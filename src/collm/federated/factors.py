"""Adapters as plain factors by module, to and from the weights file of a PEFT folder."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from collm.errors import RoundError
from collm.lora.config import MAX_RANK
from collm.lora.peft_folder import BASE_DIGEST

Factors = Mapping[str, tuple[Tensor, Tensor]]
"""A [rank, in_features] and B [out_features, rank] by module, named as in the file; the scale is
folded into B, and modules that are missing have ΔW = 0."""
Shapes = frozenset[tuple[str, int, int]]
"""(module, in_features, out_features); ranks may differ between adapters."""

_MAX_VALUE = 1e6
"""Values past this are no adapter's; products of them could overflow float32 on a member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFile:
    """What one weights file holds."""

    factors: Factors
    """float32 on the CPU; finite."""
    base_digest: str | None
    """Digest of the base model that it was made for, if the file says."""

    def shapes(self) -> Shapes:
        """Return what the file says about the model's shapes."""
        return frozenset((name, a.shape[1], b.shape[0]) for name, (a, b) in self.factors.items())


def read_factors(path: Path, member: str, max_bytes: int, digest: str | None = None) -> AdapterFile:
    """Read and check a weights file that came from ``member``.

    Args:
        path: The file; only safetensors is read, nothing in it is executed.
        member: Whom complaints name.
        max_bytes: Largest file that is read.
        digest: SHA-256 that the file's bytes must have; ``None`` takes any.

    Raises:
        RoundError: The file is missing, too large, damaged, of another format, or holds anything
            but finite LoRA factors of matching shapes.
    """
    try:
        _check_file(path, max_bytes, digest)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
        return AdapterFile(factors=_paired(tensors), base_digest=metadata.get(BASE_DIGEST))
    except (OSError, SafetensorError) as error:
        raise RoundError(f"{member}: no valid safetensors file: {error}", member=member) from error
    except ValueError as error:
        raise RoundError(f"{member}: {error}", member=member) from error


def write_factors(path: Path, factors: Factors, base_digest: str | None) -> None:
    """Write a weights file that ``read_factors`` and ``lora.peft_folder`` read.

    Equal factors give equal bytes.
    """
    tensors = {}
    for module, (a, b) in factors.items():
        tensors[f"{module}.lora_A.weight"] = a.contiguous()
        tensors[f"{module}.lora_B.weight"] = b.contiguous()
    # One entry at most: the library writes several in random order, and digests would differ.
    save_file(tensors, path, metadata={BASE_DIGEST: base_digest} if base_digest else None)


def file_digest(path: Path) -> str:
    """Return the SHA-256 over a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def common_shapes(files: Iterable[AdapterFile], base: AdapterFile | None) -> Shapes | None:
    """Return the shapes that more files have than any others; ``None`` when there is a tie.

    A tie goes to what could have been trained from the base, which may adapt fewer modules.
    """
    counts = Counter(file.shapes() for file in files)
    known = base.shapes() if base else None

    def rank(shapes: Shapes) -> tuple[int, bool]:
        return counts[shapes], known is not None and known <= shapes

    ranked = sorted(counts, key=rank, reverse=True)
    if not ranked or (len(ranked) > 1 and rank(ranked[0]) == rank(ranked[1])):
        return None
    return ranked[0]


def common_base(files: Iterable[AdapterFile], base: AdapterFile | None) -> str | None:
    """Return the base model's digest: the base adapter's, else the one that most files name."""
    if base and base.base_digest:
        return base.base_digest
    counts = Counter(file.base_digest for file in files if file.base_digest)
    return max(sorted(counts), key=lambda digest: counts[digest], default=None)


def difference(file: AdapterFile, shapes: Shapes, base_digest: str | None) -> str | None:
    """Return why ``file`` cannot be combined with files of these ``shapes``, or ``None``."""
    if file.base_digest and base_digest and file.base_digest != base_digest:
        return f"made for base {file.base_digest[:12]}, not {base_digest[:12]}"
    found = {name: (num_in, num_out) for name, num_in, num_out in file.shapes()}
    wanted = {name: (num_in, num_out) for name, num_in, num_out in shapes}
    if missing := wanted.keys() - found.keys():
        return f"factors of {_some(missing)} are missing"
    if extra := found.keys() - wanted.keys():
        return f"factors of {_some(extra)}, which others do not have"
    for name in sorted(wanted):
        if found[name] != wanted[name]:
            num_in, num_out = found[name]
            return (
                f"{name} maps {num_in} to {num_out}, others {wanted[name][0]} to {wanted[name][1]}"
            )
    return None


def _check_file(path: Path, max_bytes: int, digest: str | None) -> None:
    num_bytes = path.stat().st_size
    if num_bytes > max_bytes:
        raise ValueError(f"the file has {num_bytes} bytes; allowed are {max_bytes}")
    with path.open("rb") as file:
        beginning = file.read(2)
    if beginning in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        raise ValueError("the file is a pickle; only safetensors is read")
    if digest is not None and file_digest(path) != digest:
        raise ValueError("the file's SHA-256 is not the one reported")


def _paired(tensors: Mapping[str, Tensor]) -> Factors:
    halves: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        module, _, kind = key.removesuffix(".weight").rpartition(".")
        if not module or kind not in ("lora_A", "lora_B"):
            raise ValueError(f"unexpected tensor {key!r}")
        if kind in halves.setdefault(module, {}):
            raise ValueError(f"{module} has two {kind}")
        halves[module][kind] = tensor
    if not halves:
        raise ValueError("no LoRA factors")
    if lonely := [module for module, pair in halves.items() if len(pair) != 2]:
        raise ValueError(f"lora_A or lora_B of {_some(lonely)} is missing")
    return {
        module: _checked_pair(module, halves[module]["lora_A"], halves[module]["lora_B"])
        for module in sorted(halves)
    }


def _checked_pair(module: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    if not (a.is_floating_point() and b.is_floating_point()):
        raise ValueError(f"{module} has factors of type {a.dtype} and {b.dtype}")
    shapes = f"{module}: lora_A is {list(a.shape)} and lora_B {list(b.shape)}"
    if a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[1]:
        raise ValueError(f"{shapes}; needed are [rank, in] and [out, rank]")
    if not 1 <= a.shape[0] <= MAX_RANK or not a.numel() or not b.numel():
        raise ValueError(f"{shapes}; allowed are ranks 1 to {MAX_RANK} and no empty factors")
    a, b = a.float(), b.float()
    largest = torch.maximum(a.abs().max(), b.abs().max()).item()  # NaN if any value is
    if not largest < float("inf"):
        raise ValueError(f"{module} has non-finite values")
    if largest > _MAX_VALUE:
        raise ValueError(f"{module} has values up to {largest:.3g}; allowed are {_MAX_VALUE:g}")
    return a, b


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
