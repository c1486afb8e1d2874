"""What more training would do to an adapter's loss, and so to its quality."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from collm.metrics.goodput import paper_quality

_WINDOW = 24
"""Points that a fit rests on."""
_FIRST_FIT = 4
# Priors of the fit: the exponent, and the logarithm of n0 over the tokens spanned.
_EXPONENTS = tuple(step / 10.0 for step in range(1, 11))
_OFFSETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_EXPONENT, _EXPONENT_SPREAD = 0.5, 0.25
_OFFSET_SPREAD = 1.5
_NOISE_SHARE = 0.01
"""A loss is believed to no more than this share of it."""
# The prior curve: half of the loss can be learned away, a third of that in the first 20,000 tokens.
_PRIOR_FLOOR = 0.5
_PRIOR_TOKENS = 15_000.0
_NEWER = 4.0
"""What a point weighs against the one before it: how an adapter learns is not known yet, and its
first steps may gain more than all that follow."""
_DRIFT, _ALARM = 0.5, 4.0
"""CUSUM's allowance and threshold, in standard deviations of a residual."""


@dataclass(frozen=True, slots=True)
class _Law:
    """``CE(n) = a (n + n0)^(-b) + c``, n counted from the window's first point."""

    a: float
    n0: float
    b: float
    c: float

    def loss(self, tokens: float) -> float:
        return float(self.a * (tokens + self.n0) ** -self.b + self.c)

    def tokens(self, loss: float) -> float:
        """Return where the law reaches a loss; infinite if it never does."""
        if loss <= self.c or self.a <= 0.0:
            return math.inf
        return float(((loss - self.c) / self.a) ** (-1.0 / self.b)) - self.n0


class _Shift:
    """A CUSUM of one-step-ahead residuals, in both directions."""

    def __init__(self) -> None:
        self._sums = [0.0, 0.0]
        self._num_points = [0, 0]
        """Points since each sum was last zero."""

    def add(self, residual: float) -> int | None:
        """Note a residual in standard deviations; return the points since a shift, if proven."""
        for side, signed in enumerate((residual, -residual)):
            self._sums[side] = max(0.0, self._sums[side] + signed - _DRIFT)
            self._num_points[side] = self._num_points[side] + 1 if self._sums[side] else 0
        if abs(residual) - _DRIFT > _ALARM:
            return 1  # this point says it all
        side = 0 if self._sums[0] > self._sums[1] else 1
        return self._num_points[side] if self._sums[side] > _ALARM else None


class QualityCurve:
    """Loss by tokens trained, ``CE(n) = a (n + n0)^(-b) + c`` with b ≤ 1, of the latest points.

    With a, c ≥ 0 and 0 < b ≤ 1 the loss is convex and ``Q = 1 / max(CE, 0.1)`` concave in n, so
    that each further token gains no more than the one before. b and n0 come from a grid, a and c by
    non-negative least squares; weak priors on b and n0 choose where points cannot. Below four
    points the curve is a prior through them: half of the loss can be learned away, a third of that
    half in 20,000 tokens. Where residuals shift (a CUSUM of them), the points before the shift are
    dropped: a new domain, or what was served was replaced by something worse.

    Source: the power law with an offset, Hestness et al., arXiv 1712.00409; E. S. Page, Continuous
    inspection schemes, Biometrika 41 (1954), for the CUSUM.

    Args:
        prior_loss: Loss before any point.
    """

    def __init__(self, prior_loss: float = 2.5) -> None:
        self._points: list[tuple[float, float]] = []
        self._prior_loss = prior_loss
        self._shift = _Shift()
        self._refit()

    @property
    def num_points(self) -> int:
        """Points that the curve rests on."""
        return len(self._points)

    @property
    def loss_now(self) -> float:
        """The curve's loss at the latest point: less noisy than the point."""
        return self._law.loss(self._tokens_now)

    def add(self, tokens: float, loss: float) -> None:
        """Learn from a measured loss; one that is not finite is ignored.

        Args:
            tokens: Tokens trained until then. Fewer than at the point before: training went back,
                and the curve starts anew.
            loss: Held-out cross-entropy, in nats per token.
        """
        if not math.isfinite(loss):
            return
        if self._points and tokens < self._points[-1][0]:
            self._points, self._shift = [], _Shift()
        num_kept = _WINDOW - 1
        if len(self._points) >= _FIRST_FIT:
            expected = self.loss(tokens - self._points[-1][0])
            found = self._shift.add((loss - expected) / self._noise())
            if found is not None:
                num_kept, self._shift = found - 1, _Shift()
        self._points = [*self._points[max(0, len(self._points) - num_kept) :], (tokens, loss)]
        self._refit()

    def loss(self, more_tokens: float) -> float:
        """Return the loss expected after this many more tokens."""
        return self._law.loss(self._tokens_now + more_tokens)

    def gain(self, more_tokens: float) -> float:
        """Return by how much Q = 1 / max(CE, 0.1) would rise; 0 or more, concave."""
        return paper_quality(self.loss(more_tokens)) - paper_quality(self.loss_now)

    def tokens_to(self, loss: float) -> float:
        """Return how many more tokens reach a loss: 0 if it is reached, infinite if never."""
        return max(0.0, self._law.tokens(loss) - self._tokens_now)

    @property
    def _tokens_now(self) -> float:
        return self._points[-1][0] - self._points[0][0] if self._points else 0.0

    def _refit(self) -> None:
        points = [(tokens - self._points[0][0], loss) for tokens, loss in self._points]
        is_enough = len(points) >= _FIRST_FIT and points[-1][0] > 0.0
        self._law = _fit(points) if is_enough else self._prior(points)

    def _noise(self) -> float:
        """Return the standard deviation of the next residual.

        What the fit took up is added back, twice as fits of few points miss ahead of them.
        """
        start, losses = self._points[0][0], [loss for _, loss in self._points]
        squares = sum((loss - self._law.loss(n - start)) ** 2 for n, loss in self._points)
        deviation = math.sqrt(squares / (len(losses) - 2)) * (1.0 + 4.0 / len(losses))
        return max(deviation, _NOISE_SHARE * sum(losses) / len(losses), 1e-9)

    def _prior(self, points: Sequence[tuple[float, float]]) -> _Law:
        """Return the prior curve through the points, the latest most, or from the prior loss."""
        n0, b = _PRIOR_TOKENS, _EXPONENT
        shape = _Law((1.0 - _PRIOR_FLOOR) * n0**b, n0, b, _PRIOR_FLOOR)
        values = [shape.loss(tokens) for tokens, _ in points]
        level = self._prior_loss
        if points:
            weights = [_NEWER**number for number in range(len(points))]
            rows = list(zip(weights, values, (loss for _, loss in points), strict=True))
            found = sum(weight * value * loss for weight, value, loss in rows)
            level = found / sum(weight * value * value for weight, value, _ in rows)
        return _Law(level * shape.a, n0, b, level * shape.c)


def _fit(points: Sequence[tuple[float, float]]) -> _Law:
    """Return the law that fits best, beside its priors."""
    span = max(points[-1][0], 1.0)
    candidates = []
    for offset in _OFFSETS:
        for b in _EXPONENTS:
            n0 = offset * span
            a, c, squares = _line([(n + n0) ** -b for n, _ in points], [y for _, y in points])
            prior = ((b - _EXPONENT) / _EXPONENT_SPREAD) ** 2
            prior += (math.log10(offset) / _OFFSET_SPREAD) ** 2
            candidates.append((squares, prior, _Law(a, n0, b, c)))
    mean = sum(loss for _, loss in points) / len(points)
    least = min(squares for squares, _, _ in candidates)
    variance = max(least / max(1, len(points) - 3), (_NOISE_SHARE * mean) ** 2, 1e-18)
    return min(candidates, key=lambda found: found[0] / variance + found[1])[2]


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Fit ``y = a x + c`` with a, c ≥ 0; return them and the sum of squared residuals."""
    n, mean_x, mean_y = len(x), sum(x) / len(x), sum(y) / len(y)
    spread = sum((value - mean_x) ** 2 for value in x)
    common = sum((u - mean_x) * (v - mean_y) for u, v in zip(x, y, strict=True))
    a = max(0.0, common / spread) if spread > 0.0 else 0.0
    c = mean_y - a * mean_x
    if c < 0.0:
        square = sum(value * value for value in x)
        a, c = max(0.0, (common + n * mean_x * mean_y) / square), 0.0
    return a, c, sum((v - a * u - c) ** 2 for u, v in zip(x, y, strict=True))
