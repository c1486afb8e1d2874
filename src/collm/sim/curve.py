"""How a loss falls with training: the power law that profiles carry."""

from collections.abc import Sequence
from dataclasses import dataclass

from collm.errors import ConfigError
from collm.pacing.least_squares import solve_non_negative

_STEEPNESSES = tuple(step / 20 for step in range(2, 21))
_STARTS = tuple(10.0 ** (step / 4) for step in range(4, 25))
"""Candidates for n0, from 10 to a million tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A loss after ``n`` training tokens, ``a · (n + n0)^(-b) + c``; falls ever more slowly."""

    a: float
    """Scale of what can be learned; 0 or more."""
    n0: float
    """Training tokens that the start is worth; above 0."""
    b: float
    """Steepness, from 0 to 1: above 1 gains would not shrink from the start."""
    c: float = 0.0
    """What no training removes; 0 or more."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        is_allowed = self.a >= 0.0 and self.n0 > 0.0 and 0.0 <= self.b <= 1.0 and self.c >= 0.0
        if not is_allowed:
            raise ConfigError(f"{self}: needs a >= 0, n0 > 0, b from 0 to 1, c >= 0")

    def at(self, num_tokens: float) -> float:
        """Return the loss after so many training tokens."""
        value: float = self.a * (num_tokens + self.n0) ** -self.b + self.c
        return value


def fit_curve(points: Sequence[tuple[float, float]]) -> Curve:
    """Return the curve of least squared error through (training tokens, loss) points.

    ``a`` and ``c`` are solved for at every ``b`` and ``n0`` of a grid. Points of one loss alone
    give a flat curve.

    Raises:
        ConfigError: There are fewer than three points.
    """
    if len(points) < 3:
        raise ConfigError(f"a loss curve needs three measured points, not {len(points)}")
    fits = (_fit(points, b, n0) for b in _STEEPNESSES for n0 in _STARTS)
    return min(fits, key=lambda curve: _error(curve, points))


def _fit(points: Sequence[tuple[float, float]], b: float, n0: float) -> Curve:
    powers = [(n + n0) ** -b for n, _ in points]
    scale = max(powers)  # so that both unknowns are of one size
    rows = [(power / scale, loss) for power, (_, loss) in zip(powers, points, strict=True)]
    cross = sum(x for x, _ in rows)
    # A little ridge: with equal powers the two unknowns would be one.
    gram = [[sum(x * x for x, _ in rows) + 1e-9, cross], [cross, len(rows) + 1e-9]]
    moment = [sum(x * loss for x, loss in rows), sum(loss for _, loss in rows)]
    a, c = solve_non_negative(gram, moment)
    return Curve(a=a / scale, n0=n0, b=b, c=c)


def _error(curve: Curve, points: Sequence[tuple[float, float]]) -> float:
    return sum((curve.at(n) - loss) ** 2 for n, loss in points)
