"""Rows of logits: the kernels as functions on tensors."""

import torch
from torch import Tensor

from collm.ops.native.library import address, kernels


def cross_entropy(
    logits: Tensor, targets: Tensor, *, wants_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Return what ``ops.loss.cross_entropy`` does; the gradient takes the place of the logits.

    Raises:
        IndexError: A target is not a token of the vocabulary.
    """
    num_rows, vocab_size = logits.shape
    if num_rows and not 0 <= int(targets.min()) <= int(targets.max()) < vocab_size:
        raise IndexError(f"targets must be from 0 to {vocab_size - 1}")
    losses = torch.empty(num_rows)
    kernels().cross_entropy(
        address(logits, torch.bfloat16, num_rows, vocab_size),
        address(targets, torch.int64, num_rows),
        losses.data_ptr(),
        logits.data_ptr() if wants_gradient else None,
        *logits.shape,
        torch.get_num_threads(),
    )
    return losses, logits if wants_gradient else None
