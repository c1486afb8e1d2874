"""How far the gradients of a step's micro-batches lie apart, from their norms alone."""

import math

from collm.types import GradientSums


class GradientSpread:
    """Adds up what one optimizer step says of gradient noise.

    With ``G_k`` the gradient of micro-batch k's summed loss, ``w_k`` its supervised weight, ``G``
    and ``W`` the sums of both, the spread of the mean gradients around the step's own is

        Σ w_k |G_k / w_k - G / W|² = Σ |G_k|² / w_k - |G|² / W

    so that no gradient has to be kept, and micro-batches of unequal size need no special care. The
    mean of this over noise is (K - 1) s for K micro-batches, where s / W is the variance of a mean
    gradient over W: the sum of squares within groups of an analysis of variance, and for equal
    sizes the estimate of McCandlish et al., arXiv 1812.06162, appendix A.1.
    """

    def __init__(self) -> None:
        """Begin a step."""
        self.clear()

    def clear(self) -> None:
        """Begin another step."""
        self._num_batches = 0
        self._weight = 0.0
        self._sum = 0.0

    def add(self, square: float, weight: float) -> None:
        """Note a micro-batch's |G_k|² and w_k."""
        self._num_batches += 1
        self._weight += weight
        self._sum += square / weight

    def sums(self, norm: float, num_tokens: int) -> GradientSums:
        """Return what the step says, per sample token; nothing if it says nothing.

        Args:
            norm: |G| / W; not finite for a step that was skipped.
            num_tokens: Sample tokens of the step, which W counts some of.
        """
        if self._num_batches < 2 or not math.isfinite(norm + self._sum):
            return GradientSums()
        spread = max(0.0, self._sum - self._weight * norm * norm)  # rounding may take it below
        return GradientSums(
            num_steps=1,
            num_differences=self._num_batches - 1,
            spread=spread * num_tokens / self._weight,
            square=norm * norm,
            inverse_tokens=1.0 / num_tokens,
        )
