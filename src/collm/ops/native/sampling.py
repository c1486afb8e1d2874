"""Tokens from rows of logits, and their log-probabilities: the kernels as functions on tensors."""

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from collm.ops.native.library import is_available, kernels
from collm.types import TokenLogprobs

_INT, _DOUBLE, _POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


class ChoiceFields(ctypes.Structure):
    """How one row's token is chosen; mirrors that of ``sampling.h``, field for field."""

    _fields_ = (
        ("draw", _DOUBLE),
        ("temperature", _DOUBLE),
        ("top_p", _DOUBLE),
        ("min_p", _DOUBLE),
        ("top_k", _INT),
        ("repetition", _DOUBLE),
        ("presence", _DOUBLE),
        ("frequency", _DOUBLE),
        ("known", _POINTER),
        ("num_prompt", _INT),
        ("num_known", _INT),
        ("barred", _POINTER),
        ("num_barred", _INT),
    )


class AskedFields(ctypes.Structure):
    """What is asked of one row, and the answer; mirrors that of ``logprobs.h``."""

    _fields_ = (
        ("row", _INT),
        ("token", _INT),
        ("num_top", _INT),
        ("top", ctypes.POINTER(_INT)),
        ("top_logprobs", ctypes.POINTER(_DOUBLE)),
        ("logprob", _DOUBLE),
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """The fields of a row, and the tokens that they point to."""

    fields: ChoiceFields
    known: "array[int]"
    """Tokens of the prompt, then of the output, int32; empty without penalties."""
    barred: "array[int]"
    """Tokens that may not come, int32."""

    def __post_init__(self) -> None:
        self.fields.known, self.fields.num_known = self.known.buffer_info()
        self.fields.barred, self.fields.num_barred = self.barred.buffer_info()


def can_sample(logits: Tensor) -> bool:
    """Return whether the kernels take logits like these."""
    return (
        logits.dtype in (torch.bfloat16, torch.float32)
        and logits.device.type == "cpu"
        and is_available()
    )


def sample(logits: Tensor, choices: Sequence[Choice]) -> list[int]:
    """Return the token of each row of ``logits`` [num_rows, vocab_size]; -1 for none."""
    logits = logits.contiguous()
    fields = (ChoiceFields * len(choices))(*[choice.fields for choice in choices])
    tokens = (_INT * len(choices))()
    kernels().sample(
        logits.data_ptr(),
        logits.dtype == torch.float32,
        ctypes.addressof(fields),
        ctypes.addressof(tokens),
        *logits.shape,
        torch.get_num_threads(),
    )
    return list(tokens)


def log_probabilities(logits: Tensor, asked: Sequence[tuple[int, int, int]]) -> list[TokenLogprobs]:
    """Return log-probabilities of single rows of ``logits`` [num_rows, vocab_size], without NaN.

    Args:
        logits: bfloat16 or float32.
        asked: Of each answer the row, the token, and the number of most likely tokens to list.
    """
    logits = logits.contiguous()
    fields = (AskedFields * len(asked))()
    for field, (row, token, num_top) in zip(fields, asked, strict=True):
        field.row, field.token, field.num_top = row, token, num_top
        field.top, field.top_logprobs = (_INT * num_top)(), (_DOUBLE * num_top)()
    kernels().log_probabilities(
        logits.data_ptr(),
        logits.dtype == torch.float32,
        ctypes.addressof(fields),
        len(asked),
        logits.shape[1],
        torch.get_num_threads(),
    )
    return [
        TokenLogprobs(
            field.logprob,
            tuple(zip(field.top[:num_top], field.top_logprobs[:num_top], strict=True)),
        )
        for field, (_, _, num_top) in zip(fields, asked, strict=True)
    ]
