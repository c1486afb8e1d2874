"""AdamW on a flat parameter vector, in pieces that each end soon."""

import math
from typing import Literal

import torch
from torch import Tensor

_BETA_1, _BETA_2, _EPS = 0.9, 0.999, 1e-8

Schedule = Literal["constant", "linear", "cosine", "inverse_sqrt"]


def learning_rate_share(
    step: int,
    warmup_steps: int,
    schedule: Schedule,
    total_steps: int | None,
    hold_steps: int = 1,
) -> float:
    """Return the share of the peak learning rate at ``step``, counted from 0.

    Rises linearly over the warm-up, then stays, or falls to a tenth at ``total_steps``; or, by
    ``"inverse_sqrt"``, stays up to ``hold_steps`` and falls as √(hold_steps / step) for ever.
    """
    warmup = min(1.0, (step + 1) / max(1, warmup_steps))
    if schedule == "inverse_sqrt":
        return warmup * math.sqrt(hold_steps / max(step, hold_steps))
    if schedule == "constant" or total_steps is None:
        return warmup
    done = min(1.0, max(0.0, (step - warmup_steps) / max(1, total_steps - warmup_steps)))
    decay = 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return warmup * (0.1 + 0.9 * decay)


class FlatAdamW:
    """AdamW state of one parameter vector.

    Source: Decoupled weight decay, arXiv 1711.05101, algorithm 2.
    """

    def __init__(self, num_parameters: int, weight_decay: float, device: torch.device) -> None:
        """Start with zero moments."""
        self.mean = torch.zeros(num_parameters, device=device)
        self.square = torch.zeros(num_parameters, device=device)
        self.num_steps = 0
        self._weight_decay = weight_decay

    def reset(self) -> None:
        """Forget the moments, as after the parameters changed their meaning."""
        self.mean.zero_()
        self.square.zero_()
        self.num_steps = 0

    def begin_step(self) -> None:
        """Count a step whose pieces follow."""
        self.num_steps += 1

    def update_(
        self, parameters: Tensor, gradient: Tensor, piece: slice, learning_rate: float
    ) -> None:
        """Update ``parameters[piece]`` by ``gradient[piece]``, in place."""
        p, g = parameters[piece], gradient[piece]
        m, v = self.mean[piece], self.square[piece]
        m.lerp_(g, 1.0 - _BETA_1)
        v.mul_(_BETA_2).addcmul_(g, g, value=1.0 - _BETA_2)
        correction_1 = 1.0 - _BETA_1**self.num_steps
        correction_2 = 1.0 - _BETA_2**self.num_steps
        if self._weight_decay:
            p.mul_(1.0 - learning_rate * self._weight_decay)
        scale = v.sqrt().div_(math.sqrt(correction_2)).add_(_EPS)
        p.addcdiv_(m, scale, value=-learning_rate / correction_1)


def clip_factor(gradient: Tensor, divisor: float, max_norm: float) -> tuple[float, float]:
    """Return what to multiply ``gradient`` by, and the norm that it has after ``divisor`` alone.

    The factor divides by ``divisor`` and then shortens to ``max_norm``. When the gradient is not
    finite the norm is not either, and the factor means nothing.
    """
    norm = float(gradient.norm()) / divisor
    return min(1.0, max_norm / max(norm, 1e-12)) / divisor, norm
