"""What the size of an optimizer step does: to what a token teaches, and to tokens per second."""

from dataclasses import dataclass

from collm.pacing.online import OnlineCost

_QUANTILE = 0.9
# Seconds per token and per optimizer step of SmolLM2-135M, rank 16, on two CPU cores.
_PRIOR = (2.5e-3, 0.05)


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What a token of a large step teaches beside one of a small step.

    ``e(B) = (φ + B₀) / (φ + B)``: tokens that reach the same loss need ``1 + φ / B`` steps for one
    step of the whole gradient, each of B tokens.

    Source: McCandlish et al., arXiv 1812.06162, equation 2.11; Pollux (Qiao et al., OSDI 2021),
    equation 7.
    """

    phi_tokens: float
    """Gradient noise scale φ."""
    base_tokens: float
    """B₀, the step at which a token counts as one."""

    def e(self, batch_tokens: float) -> float:
        """Return the worth of a token in steps of ``batch_tokens``, above 0."""
        return (self.phi_tokens + self.base_tokens) / (self.phi_tokens + batch_tokens)


class Throughput:
    """Training tokens per second when training has all of the time.

    Seconds are ``a · tokens + o · steps``, fitted by least relative squares with fading weights, so
    that ``τ(B) = 1 / (a + o / B)``. Windows that all have one B cannot tell the two apart, and
    leave them in the prior's proportion.
    """

    def __init__(self, prior: tuple[float, float] = _PRIOR) -> None:
        """Begin with ``prior``: seconds per token and per optimizer step."""
        self._cost = OnlineCost(prior, _QUANTILE)

    @property
    def token_s(self) -> float:
        """a: seconds per token."""
        return self._cost.coefficients[0]

    @property
    def step_s(self) -> float:
        """o: seconds that every optimizer step takes besides."""
        return self._cost.coefficients[1]

    def observe(self, num_tokens: int, num_steps: int, seconds: float) -> None:
        """Learn from a window of training; one without tokens says nothing.

        Args:
            num_tokens: Sample tokens learned.
            num_steps: Optimizer steps.
            seconds: Time of all quanta in it.
        """
        if num_tokens > 0 and seconds > 0.0:
            self._cost.observe((float(num_tokens), float(num_steps)), seconds)

    def tokens_per_s(self, batch_tokens: float) -> float:
        """Return τ at steps of ``batch_tokens``."""
        return 1.0 / self._cost.predict_s((1.0, 1.0 / batch_tokens))
