"""How many tokens an optimizer step can use before more of them stop paying."""

from collm.types import GradientSums

_PRIOR_STEPS = 4.0
"""Steps that a measurement needs to weigh as much as the prior."""
_MAX_STEPS_OF_NOISE = 100.0
"""A noise scale beyond this many steps' tokens cannot be told from an infinite one."""


class NoiseScale:
    """The simple gradient noise scale φ = tr Σ / |G|², in tokens.

    From sums over steps of K micro-batches (see ``GradientSums``)

        tr Σ = spread / num_differences
        |G|² = (square - tr Σ · inverse_tokens) / num_steps

    both unbiased; numerator and denominator fade separately, because their ratio alone would be
    biased. Where noise drowns the gradient, |G|² may come out at 0 or below: φ is then bounded by
    a hundred steps' tokens.

    Args:
        prior_tokens: φ before there are measurements, and a few steps' worth afterwards.
        half_life_steps: Steps after which a measurement counts half.

    Source: McCandlish et al., arXiv 1812.06162, section 2.2 and appendix A.1; Pollux (Qiao et al.,
    OSDI 2021), section 3.1, for measuring it while training.
    """

    def __init__(self, prior_tokens: float = 4_000.0, half_life_steps: float = 100.0) -> None:
        self._prior_tokens = prior_tokens
        self._half_life_steps = half_life_steps
        self._num_steps = self._num_differences = 0.0
        self._spread = self._square = self._inverse_tokens = 0.0

    def add(self, sums: GradientSums) -> None:
        """Take in what optimizer steps of any number said."""
        keep = 0.5 ** (sums.num_steps / self._half_life_steps)
        self._num_steps = keep * self._num_steps + sums.num_steps
        self._num_differences = keep * self._num_differences + sums.num_differences
        self._spread = keep * self._spread + sums.spread
        self._square = keep * self._square + sums.square
        self._inverse_tokens = keep * self._inverse_tokens + sums.inverse_tokens

    @property
    def measured_tokens(self) -> float | None:
        """φ as measured, without the prior; ``None`` before any step of two micro-batches."""
        if not self._num_differences or not self._square:
            return None
        noise = self._spread / self._num_differences
        signal = (self._square - noise * self._inverse_tokens) / self._num_steps
        longest = _MAX_STEPS_OF_NOISE * self._num_steps / self._inverse_tokens
        return noise / signal if signal > 0.0 and noise < longest * signal else longest

    @property
    def phi_tokens(self) -> float:
        """φ: the measurement and the prior, each by its steps, in the mean of their logarithms."""
        measured = self.measured_tokens
        if measured is None:
            return self._prior_tokens
        share = self._num_steps / (self._num_steps + _PRIOR_STEPS)
        return float(max(measured, 1.0) ** share * self._prior_tokens ** (1.0 - share))
