"""Cross-entropy and its gradient, taken together."""

import torch
from torch import Tensor

from collm.ops.native import logits as native
from collm.ops.native.library import can_take


def cross_entropy(
    logits: Tensor, targets: Tensor, *, wants_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Return each row's loss in nats [num_rows], float32, and its gradient by the logits.

    A row with a logit that is not finite has a loss that is none.

    Args:
        logits: [num_rows, vocab_size]; may be overwritten.
        targets: Token ids [num_rows], int64.
        wants_gradient: Whether to take the gradient [num_rows, vocab_size], in the logits' dtype;
            it is ``None`` otherwise.
    """
    if can_take(logits):
        return native.cross_entropy(logits, targets, wants_gradient=wants_gradient)
    logprobs = logits.float().log_softmax(dim=-1)
    losses = -logprobs.gather(1, targets.unsqueeze(1)).squeeze(1)
    if not wants_gradient:
        return losses, None
    probs = logprobs.exp_()
    probs.scatter_add_(1, targets.unsqueeze(1), -torch.ones_like(losses).unsqueeze(1))
    return losses, probs.to(logits.dtype)
