"""Rows of logits: the kernels as functions on tensors."""

import torch
from torch import Tensor

from collm.ops.native.library import kernels


def cross_entropy(
    logits: Tensor, targets: Tensor, *, wants_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Return what ``ops.loss.cross_entropy`` does; the gradient takes the place of the logits."""
    assert logits.is_contiguous()
    losses = torch.empty(logits.shape[0])
    kernels().cross_entropy(
        logits.data_ptr(),
        targets.data_ptr(),
        losses.data_ptr(),
        logits.data_ptr() if wants_gradient else None,
        *logits.shape,
        torch.get_num_threads(),
    )
    return losses, logits if wants_gradient else None
