"""The compiled kernels as functions on tensors.

The library has a plain C interface, so it does not depend on the version of torch or Python that
built it. Where it is missing, or the CPU lacks an instruction, ``is_available`` says so and callers
keep to torch.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

COLUMNS = 32
"""Output columns of a packed block; features must be multiples of it."""

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64


@cache
def _library() -> ctypes.CDLL | None:
    """Return the loaded library, or ``None`` if it is not there or this CPU cannot run it."""
    for path in sorted(Path(__file__).parent.glob("_kernels*.so")):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        library.collm_supported.restype = ctypes.c_int
        if library.collm_supported():
            _declare(library)
            return library
    return None


def _declare(library: ctypes.CDLL) -> None:
    linear, norm, gate = library.collm_linear, library.collm_rms_norm, library.collm_silu_mul
    decode, prefill = library.collm_decode_attention, library.collm_prefill_attention
    norm_back, gate_back = library.collm_rms_norm_back, library.collm_silu_mul_back
    rotate, write = library.collm_rotate, library.collm_write_rows
    for function in (linear, decode, prefill, norm, norm_back, gate, gate_back, rotate, write):
        function.restype = None
    norm.argtypes = [*[_POINTER] * 3, _SIZE, _SIZE, ctypes.c_float, ctypes.c_int]
    gate.argtypes = [_POINTER, _POINTER, _SIZE, _SIZE, ctypes.c_int]
    norm_back.argtypes = [*[_POINTER] * 4, _SIZE, _SIZE, ctypes.c_float, ctypes.c_int]
    gate_back.argtypes = [*[_POINTER] * 3, _SIZE, _SIZE, ctypes.c_int]
    rotate.argtypes = [
        _POINTER, _SIZE, *[_POINTER] * 3, *[_SIZE] * 3, ctypes.c_float, ctypes.c_int,
    ]  # fmt: skip
    write.argtypes = [*[_POINTER] * 3, _SIZE, _SIZE, ctypes.c_int]
    linear.argtypes = [*[_POINTER] * 4, *[_SIZE] * 3, *[_POINTER] * 3, _SIZE, ctypes.c_int]
    decode.argtypes = [
        _POINTER, _SIZE, _POINTER, _POINTER, _SIZE, _POINTER, _POINTER, *[_SIZE] * 6,
        ctypes.c_float, ctypes.c_int,
    ]  # fmt: skip
    prefill.argtypes = [
        _POINTER, _SIZE, *[_POINTER] * 3, *[_SIZE] * 7, ctypes.c_float, ctypes.c_int,
    ]  # fmt: skip


def is_available() -> bool:
    """Return whether the kernels can be called here."""
    return _library() is not None


def obstacle() -> str | None:
    """Return why the kernels cannot be called here, for people; ``None`` if they can."""
    if is_available():
        return None
    if not any(Path(__file__).parent.glob("_kernels*.so")):
        return "the kernels were not compiled when collm was installed"
    return "this CPU lacks instructions that the kernels use (AVX512-BF16 among them)"


def can_take(x: Tensor) -> bool:
    """Return whether the kernels take activations like ``x``."""
    return (
        x.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and x.shape[-1] % COLUMNS == 0
        and _library() is not None
    )


def pack(weight: Tensor) -> Tensor:
    """Return bfloat16 ``weight`` [out_features, in_features] as the kernels read it.

    Pairs of inputs are interleaved over 32 outputs, so that a product streams through memory:
    int32 [out_features / 32, in_features / 2, 32], a pair in each element.
    """
    out_features, in_features = weight.shape
    as_pairs = weight.contiguous().view(torch.int32)
    blocks = as_pairs.view(out_features // COLUMNS, COLUMNS, in_features // 2)
    return blocks.permute(0, 2, 1).contiguous()


def unpack(packed: Tensor) -> Tensor:
    """Return the weight [out_features, in_features] that ``pack`` was given."""
    num_blocks, depth, _ = packed.shape
    rows = packed.permute(0, 2, 1).contiguous().view(num_blocks * COLUMNS, depth)
    return rows.view(torch.bfloat16)


def linear(
    x: Tensor,
    packed: Tensor,
    bias: Tensor | None,
    slots: Tensor | None = None,
    bank_a: Tensor | None = None,
    bank_b: Tensor | None = None,
) -> Tensor:
    """Return ``x Wᵀ + b``, plus each row's adapter output.

    Args:
        x: [num_tokens, in_features], bfloat16.
        packed: W as ``pack`` gives it.
        bias: [out_features], or ``None``.
        slots: Adapter slot of each row [num_tokens], int32, -1 for none; ``None``: no adapters.
        bank_a: A of all slots [num_slots, rank, in_features], bfloat16.
        bank_b: Bᵀ of all slots [num_slots, rank, out_features], bfloat16.
    """
    library = _library()
    assert library is not None
    x = x.contiguous()
    out_features = packed.shape[0] * COLUMNS
    y = x.new_empty(x.shape[0], out_features)
    library.collm_linear(
        x.data_ptr(),
        packed.data_ptr(),
        _address(bias),
        y.data_ptr(),
        x.shape[0],
        x.shape[1],
        out_features,
        _address(slots),
        _address(bank_a),
        _address(bank_b),
        0 if bank_a is None else bank_a.shape[1],
        torch.get_num_threads(),
    )
    return y


def decode_attention(
    q: Tensor, cache: Tensor, blocks: Tensor, lengths: Tensor, window: int | None
) -> Tensor:
    """Return the attention of one new token per row [num_rows, num_heads, head_dim].

    Args:
        q: Queries [num_rows, num_heads, head_dim], bfloat16; rows may lie apart.
        cache: [num_blocks, block_size, 2, num_kv_heads, head_dim], bfloat16.
        blocks: Block ids [num_rows, max_blocks], int64.
        lengths: Keys of each row, its own included [num_rows], int64.
        window: Keys a row may look back on, itself included; ``None`` for all.
    """
    library = _library()
    assert library is not None
    q = _heads_together(q)
    num_rows, num_heads, head_dim = q.shape
    out = q.new_empty(num_rows, num_heads, head_dim)
    library.collm_decode_attention(
        q.data_ptr(),
        q.stride(0),
        cache.data_ptr(),
        blocks.data_ptr(),
        blocks.shape[1],
        lengths.data_ptr(),
        out.data_ptr(),
        num_rows,
        num_heads,
        cache.shape[3],
        head_dim,
        cache.shape[1],
        window or 0,
        head_dim**-0.5,
        torch.get_num_threads(),
    )
    return out


def prefill_attention(
    q: Tensor, cache: Tensor, blocks: Tensor, num_context: int, window: int | None
) -> Tensor:
    """Return the causal attention of one sequence's chunk [num_rows, num_heads, head_dim].

    Args:
        q: Queries [num_rows, num_heads, head_dim], bfloat16; rows may lie apart.
        cache: [num_blocks, block_size, 2, num_kv_heads, head_dim], bfloat16.
        blocks: Block ids of the sequence's keys, the chunk's included, int64.
        num_context: Keys before the chunk.
        window: Keys a row may look back on, itself included; ``None`` for all.
    """
    library = _library()
    assert library is not None
    q = _heads_together(q)
    num_rows, num_heads, head_dim = q.shape
    out = q.new_empty(num_rows, num_heads, head_dim)
    library.collm_prefill_attention(
        q.data_ptr(),
        q.stride(0),
        cache.data_ptr(),
        blocks.data_ptr(),
        out.data_ptr(),
        num_rows,
        num_context,
        num_heads,
        cache.shape[3],
        head_dim,
        cache.shape[1],
        window or 0,
        head_dim**-0.5,
        torch.get_num_threads(),
    )
    return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, turn: float = 1.0) -> Tensor:
    """Return ``x`` [num_tokens, num_heads, head_dim] rotated by rows of a ``RotaryTable``.

    A ``turn`` of -1 rotates back.
    """
    library = _library()
    assert library is not None
    x = _heads_together(x)
    y = x.new_empty(x.shape)
    library.collm_rotate(
        x.data_ptr(),
        x.stride(0),
        _address(cos),
        _address(sin),
        y.data_ptr(),
        *x.shape,
        turn,
        torch.get_num_threads(),
    )
    return y


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the root-mean-square norm over the last dimension of ``x`` […, width]."""
    library = _library()
    assert library is not None
    x = x.contiguous()
    y = torch.empty_like(x)
    width = x.shape[-1]
    library.collm_rms_norm(
        x.data_ptr(),
        weight.data_ptr(),
        y.data_ptr(),
        x.numel() // width,
        width,
        eps,
        torch.get_num_threads(),
    )
    return y


def rms_norm_back(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the gradient of ``rms_norm`` by ``x``, for the gradient ``dy`` of its output."""
    library = _library()
    assert library is not None
    dy, x = dy.contiguous(), x.contiguous()
    dx = torch.empty_like(x)
    width = x.shape[-1]
    library.collm_rms_norm_back(
        dy.data_ptr(),
        x.data_ptr(),
        weight.data_ptr(),
        dx.data_ptr(),
        x.numel() // width,
        width,
        eps,
        torch.get_num_threads(),
    )
    return dx


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` [num_tokens, width] of ``gate_up`` [num_tokens, 2 * width]."""
    library = _library()
    assert library is not None
    gate_up = gate_up.contiguous()
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    y = gate_up.new_empty(num_tokens, width)
    library.collm_silu_mul(
        gate_up.data_ptr(), y.data_ptr(), num_tokens, width, torch.get_num_threads()
    )
    return y


def silu_mul_back(dy: Tensor, gate_up: Tensor) -> Tensor:
    """Return the gradient of ``silu_mul`` by ``gate_up``, for the gradient ``dy`` of its output."""
    library = _library()
    assert library is not None
    dy, gate_up = dy.contiguous(), gate_up.contiguous()
    d_gate_up = torch.empty_like(gate_up)
    library.collm_silu_mul_back(
        dy.data_ptr(),
        gate_up.data_ptr(),
        d_gate_up.data_ptr(),
        *dy.shape,
        torch.get_num_threads(),
    )
    return d_gate_up


def write_rows_(cache: Tensor, kv: Tensor, cache_rows: Tensor) -> None:
    """Write ``kv`` [num_tokens, width] to rows of ``cache`` [num_rows, width].

    Values that are not finite are written as zero.
    """
    library = _library()
    assert library is not None
    assert cache.is_contiguous()
    kv = kv.contiguous()
    library.collm_write_rows(
        kv.data_ptr(), cache.data_ptr(), cache_rows.data_ptr(), *kv.shape, torch.get_num_threads()
    )


def _heads_together(x: Tensor) -> Tensor:
    """Return ``x`` [num_rows, num_heads, head_dim] with each row in one piece."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


def _address(tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    assert tensor.is_contiguous()
    return tensor.data_ptr()
