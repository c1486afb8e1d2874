"""What the size of an optimizer step does: to what a token teaches, and to tokens per second."""

import math
from dataclasses import dataclass

from collm.pacing.online import OnlineCost

_QUANTILE = 0.9
# Seconds per token and per optimizer step of SmolLM2-135M, rank 16, on two CPU cores.
_PRIOR = (2.5e-3, 0.05)
_ENOUGH_STEPS = 4
_HALF_LIFE_S = 300.0
"""Training time after which a share of evaluation counts half."""
_PRIOR_S = 10.0
"""Training time that counts as much as what is thought beforehand, of speed and of evaluation."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What a token of a large step teaches beside one of a small step, at one learning rate.

    ``e(B) = √(B₀ (φ + B₀) / (B (φ + B)))``. Adam divides a step's gradient by its usual size, which
    is ``|G| √(1 + φ / B)``, φ the gradient noise scale. So a step goes ``1 / √(1 + φ / B)`` as far
    along the gradient as one without noise, and a token of it a B-th of that. Where the learning
    rate is chosen anew for every B, larger steps lose less, ``(φ + B₀) / (φ + B)`` (McCandlish et
    al., arXiv 1812.06162, equation 2.11; Pollux, Qiao et al., OSDI 2021, equation 7); here it is
    the operator's.
    """

    phi_tokens: float
    """Gradient noise scale φ."""
    base_tokens: float
    """B₀, the step at which a token counts as one."""
    micro_batch_tokens: float = 1.0
    """Usual tokens of a micro-batch: a step takes whole ones, until it has enough."""

    def e(self, batch_tokens: float) -> float:
        """Return the worth of a token in steps of ``batch_tokens``, above 0."""
        phi, base, batch = self.phi_tokens, self._taken(self.base_tokens), self._taken(batch_tokens)
        return math.sqrt(base * (phi + base) / (batch * (phi + batch)))

    def _taken(self, batch_tokens: float) -> float:
        """Return the tokens of a step that is to have at least so many."""
        return self.micro_batch_tokens * math.ceil(batch_tokens / self.micro_batch_tokens)


class Throughput:
    """Training tokens per second when training has all of the time, evaluation's part taken off.

    Seconds of training proper are ``a · tokens + o · steps``, fitted by least relative squares with
    fading weights, so that ``τ(B) = (1 - v) / (a + o / B)`` where v is the share of the time that
    evaluates. Windows that all have one B cannot tell a and o apart, and leave them in the prior's
    proportion. Steps are counted when they end, so windows are put together until there are enough
    of them for the ends not to matter. Until there are enough for a fit, the prior's times are
    taken as many times as long as those found: minutes pass, and devices differ from the first.
    """

    def __init__(self, prior: tuple[float, float] = _PRIOR) -> None:
        """Begin with ``prior``: seconds per token and per optimizer step."""
        self._prior = prior
        self._cost = OnlineCost(prior, _QUANTILE)
        self._said_s = self._found_s = _PRIOR_S
        """By the prior, and in truth."""
        self._num_tokens = self._num_steps = 0
        self._pending_s = 0.0
        self._training_s = self._evaluation_s = 0.0

    @property
    def token_s(self) -> float:
        """a: seconds per token."""
        return self._level * self._cost.coefficients[0]

    @property
    def step_s(self) -> float:
        """o: seconds that every optimizer step takes besides."""
        return self._level * self._cost.coefficients[1]

    @property
    def evaluation_share(self) -> float:
        """v: share of the time that evaluates."""
        return self._evaluation_s / (self._training_s + _PRIOR_S)

    def observe(
        self, num_tokens: int, num_steps: int, seconds: float, evaluation_s: float = 0.0
    ) -> None:
        """Learn from a window of training.

        Args:
            num_tokens: Sample tokens learned.
            num_steps: Optimizer steps.
            seconds: Time of all quanta in it.
            evaluation_s: Time of those of them that evaluate.
        """
        keep = 0.5 ** (seconds / _HALF_LIFE_S)
        self._training_s = keep * self._training_s + seconds
        self._evaluation_s = keep * self._evaluation_s + evaluation_s
        self._num_tokens += num_tokens
        self._num_steps += num_steps
        self._pending_s += seconds - evaluation_s
        if self._num_steps >= _ENOUGH_STEPS and self._pending_s > 0.0:
            self._said_s += self._pending_said_s
            self._found_s += self._pending_s
            self._cost.observe((float(self._num_tokens), float(self._num_steps)), self._pending_s)
            self._num_tokens = self._num_steps = 0
            self._pending_s = 0.0

    def tokens_per_s(self, batch_tokens: float) -> float:
        """Return τ at steps of ``batch_tokens``."""
        return (1.0 - self.evaluation_share) / (self.token_s + self.step_s / batch_tokens)

    @property
    def _level(self) -> float:
        """How many times as long as the prior's the times are; 1 once they are fitted."""
        if self._cost.coefficients != self._prior:
            return 1.0
        pending_s = self._pending_s if self._num_steps else 0.0
        return (self._found_s + pending_s) / (self._said_s + self._pending_said_s)

    @property
    def _pending_said_s(self) -> float:
        token_s, step_s = self._prior
        return token_s * self._num_tokens + step_s * self._num_steps
