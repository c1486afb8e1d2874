"""Which compiled kernels run here, and their C interface.

The same kernels are there three times: ``amx`` for CPUs with AMX-BF16 and AMX-INT8, ``avx512`` for
those with AVX512-BF16 and AVX512-VNNI, ``avx2`` for those with AVX2 and FMA. Where the library was
not built, or the CPU has none of these, the path is ``torch``: ``can_take`` says no, and callers
compute the same with torch.

The library has a plain C interface: it depends neither on the version of torch nor on Python's.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from collm.errors import ConfigError

KernelPath = Literal["amx", "avx512", "avx2", "torch"]

_PATHS: tuple[KernelPath, ...] = get_args(KernelPath)
"""Fastest first; the last one needs no library."""

COLUMNS = 32
"""Output columns of a packed block; features must be multiples of it."""

_INTERFACE = 3
"""That of ``cpu.cpp``; both change with what a function or a structure takes."""

_POINTER, _SIZE, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float

_ARGUMENTS: Mapping[str, list[Any]] = {
    "linear": [
        *[_INT, *[_POINTER] * 4, *[_SIZE] * 3],
        *[*[_POINTER] * 4, _SIZE, _POINTER, _SIZE, _INT],
    ],
    "input_grad": [_INT, *[_POINTER] * 3, *[_SIZE] * 3, _INT],
    "adapted": [
        *[_INT, *[_POINTER] * 4, *[_SIZE] * 3],
        *[_POINTER, _POINTER, _SIZE, _POINTER, _SIZE, _POINTER, _INT],
    ],
    "adapted_back": [
        *[_INT, *[_POINTER] * 4, *[_SIZE] * 3],
        *[_POINTER, _POINTER, _SIZE, _POINTER, _SIZE, *[_POINTER] * 3, _INT],
    ],
    "rms_norm": [*[_POINTER] * 3, _SIZE, _SIZE, _FLOAT, _INT],
    "rms_norm_back": [*[_POINTER] * 4, _SIZE, _SIZE, _FLOAT, _INT],
    "silu_mul": [_POINTER, _POINTER, _SIZE, _SIZE, _INT],
    "silu_mul_back": [*[_POINTER] * 3, _SIZE, _SIZE, _INT],
    "rotate": [_POINTER, _SIZE, *[_POINTER] * 3, *[_SIZE] * 3, _FLOAT, _INT],
    "write_kv": [*[_POINTER] * 3, *[_SIZE] * 3, _INT],
    "cross_entropy": [*[_POINTER] * 4, _SIZE, _SIZE, _INT],
    "log_probabilities": [_POINTER, _INT, _POINTER, _SIZE, _SIZE, _INT],
    "sample": [_POINTER, _INT, _POINTER, _POINTER, _SIZE, _SIZE, _INT],
    "decode_attention": [
        *[_POINTER, _SIZE, _POINTER, _POINTER, _SIZE, _POINTER, _POINTER],
        *[*[_SIZE] * 6, _FLOAT, _INT],
    ],
    "training_attention": [
        *[_POINTER, _SIZE, *[_POINTER] * 4, *[_SIZE] * 6],
        *[_POINTER, _POINTER, _INT],
    ],
    "training_attention_back": [
        *[_POINTER, _SIZE, *[_POINTER] * 4, *[_SIZE] * 6],
        *[*[_POINTER] * 6, _INT],
    ],
    "run_layers": [_POINTER, _POINTER, _INT],
    "prefill_attention": [_POINTER, _SIZE, *[_POINTER] * 3, *[_SIZE] * 7, _FLOAT, _INT],
}
"""Of each function, as ops/native declares it."""


class _Choice:
    """The path in use: the best that runs here, until another is chosen."""

    def __init__(self) -> None:
        self.path = paths()[0]
        self.kernels = _bind(self.path)


def path() -> KernelPath:
    """Return which kernels compute in this process."""
    return _choice().path


def paths() -> tuple[KernelPath, ...]:
    """Return every path that this installation and this CPU can run, fastest first."""
    level = 0 if (library := _library()) is None else library.collm_cpu()
    return _PATHS[len(_PATHS) - 1 - level :]


def choose(wanted: KernelPath) -> None:
    """Compute with another path from now on; call it before anything is packed.

    Raises:
        ConfigError: The path cannot run here; says why.
    """
    if wanted not in paths():
        raise ConfigError(f"kernels is {wanted!r}, which cannot run here: {_obstacle_to(wanted)}")
    choice = _choice()
    choice.path, choice.kernels = wanted, _bind(wanted)


def obstacle() -> str | None:
    """Return why kernels for this kind of CPU cannot run, for people; ``None`` if they can.

    Tiles are no matter of course, so a CPU without them lacks nothing.
    """
    return next((_obstacle_to(each) for each in ("avx2", "avx512") if each not in paths()), None)


def explain() -> str:
    """Return one line for people: the path in use, and why none is faster."""
    reason = obstacle()
    return f"kernels: {path()}" + (f", because {reason}" if reason else "")


def _obstacle_to(wanted: str) -> str:
    if _library() is None:
        return "the kernels were not compiled when collm was installed, or from other sources"
    if "avx2" not in paths():
        return "this CPU lacks instructions that the kernels use (AVX2 or FMA)"
    if "avx512" not in paths():
        return "this CPU lacks instructions of the faster ones (AVX512-BF16 or AVX512-VNNI)"
    return f"this CPU lacks what {wanted} needs (AMX-BF16 and AMX-INT8), or its system withholds it"


def is_available() -> bool:
    """Return whether compiled kernels compute here."""
    return _choice().kernels is not None


def can_attend(dtype: torch.dtype, head_dim: int) -> bool:
    """Return whether the kernels take keys and values like these."""
    return dtype == torch.bfloat16 and head_dim % COLUMNS == 0 and is_available()


def can_take(x: Tensor) -> bool:
    """Return whether the kernels take activations like ``x``."""
    return (
        x.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and x.shape[-1] % COLUMNS == 0
        and _choice().kernels is not None
    )


def kernels() -> Any:
    """Return the functions of the path in use, by name; call it only if ``is_available``."""
    found = _choice().kernels
    assert found is not None
    return found


def address(tensor: Tensor | None, dtype: torch.dtype, *shape: int) -> int | None:
    """Return where the elements of a tensor on the CPU are; ``None`` is a null pointer.

    The kernels know addresses and sizes alone: of any other tensor they would read, or overwrite,
    what is not its own.

    Raises:
        ValueError: The tensor is not contiguous, or of another dtype, shape or device.
    """
    if tensor is None:
        return None
    fits = tensor.dtype == dtype and tensor.shape == shape and tensor.device.type == "cpu"
    if not (fits and tensor.is_contiguous()):
        raise ValueError(
            f"the kernels take contiguous {dtype} of shape {list(shape)} on the CPU here, not "
            f"{tensor.dtype} of shape {list(tensor.shape)}, strides {tensor.stride()}, on "
            f"{tensor.device}"
        )
    return tensor.data_ptr()


def rows_together(x: Tensor) -> Tensor:
    """Return ``x`` [num_rows, num_heads, head_dim] with each row in one piece.

    Raises:
        ValueError: ``x`` is not bfloat16 on the CPU, or heads cannot be cut into whole vectors.
    """
    if not can_take(x):
        raise ValueError(
            f"the kernels take bfloat16 heads of a multiple of {COLUMNS} elements on the CPU, not "
            f"{x.dtype} of shape {list(x.shape)} on {x.device}"
        )
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


@cache
def _choice() -> _Choice:
    return _Choice()


@cache
def _library() -> ctypes.CDLL | None:
    """Return the loaded library, or ``None`` if it is not there, or built from other sources."""
    for file in sorted(Path(__file__).parent.glob("_kernels*.so")):
        try:
            library = ctypes.CDLL(str(file))
        except OSError:
            continue
        is_whole = all(hasattr(library, name) for name in _names())
        if is_whole and library.collm_interface() == _INTERFACE:
            return library
    return None


def _names() -> Iterator[str]:
    """Yield the names of all that is bound; a library that was built from these sources has it."""
    yield from ("collm_cpu", "collm_interface")
    for chosen in _PATHS[:-1]:
        yield from (f"collm_{chosen}_{name}" for name in _ARGUMENTS)


def _bind(chosen: KernelPath) -> SimpleNamespace | None:
    """Return the functions of a path; ``None`` for torch."""
    library = _library()
    if chosen == "torch" or library is None:
        return None
    functions: dict[str, Callable[..., None]] = {}
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, f"collm_{chosen}_{name}")
        function.restype, function.argtypes = None, arguments
        functions[name] = function
    return SimpleNamespace(**functions)
