"""Non-negative least squares for a handful of unknowns, in plain Python."""

import math
from collections.abc import Sequence

_GRADIENT_TOLERANCE = 1e-10


def solve_non_negative(gram: Sequence[Sequence[float]], moment: Sequence[float]) -> list[float]:
    """Minimise ``x·G·x / 2 - m·x`` over ``x >= 0``.

    Args:
        gram: G [n, n], symmetric and positive definite.
        moment: m [n].

    Source: Lawson and Hanson, Solving Least Squares Problems, chapter 23 (active set), on the
    normal equations scaled to a unit diagonal.
    """
    n = len(moment)
    scale = [1.0 / math.sqrt(gram[i][i]) for i in range(n)]
    g = [[gram[i][j] * scale[i] * scale[j] for j in range(n)] for i in range(n)]
    m = [moment[i] * scale[i] for i in range(n)]
    tolerance = _GRADIENT_TOLERANCE * max(map(abs, m))
    x = [0.0] * n
    passive: list[int] = []
    for _ in range(3 * n):  # the textbook's bound on how often a variable enters
        gain = [m[i] - sum(a * b for a, b in zip(g[i], x, strict=True)) for i in range(n)]
        entering = [i for i in range(n) if i not in passive and gain[i] > tolerance]
        if not entering:
            break
        passive.append(max(entering, key=gain.__getitem__))
        _descend(g, m, passive, x)
    return [x[i] * scale[i] for i in range(n)]


def _descend(g: list[list[float]], m: list[float], passive: list[int], x: list[float]) -> None:
    """Move ``x`` to the minimum over ``passive``, dropping variables that reach zero, in place."""
    while passive:
        target = _solve([[g[i][j] for j in passive] for i in passive], [m[i] for i in passive])
        steps = {i: x[i] / (x[i] - z) for i, z in zip(passive, target, strict=True) if z < 0.0}
        first = min(steps, key=steps.__getitem__, default=None)
        step = 1.0 if first is None else steps[first]
        for i, z in zip(passive, target, strict=True):
            x[i] += step * (z - x[i])
        if first is None:
            return
        x[first] = 0.0
        passive.remove(first)


def _solve(a: list[list[float]], b: list[float]) -> list[float]:
    """Solve a symmetric positive definite system by elimination; both arguments are used up."""
    n = len(b)
    for k in range(n):
        row = a[k]
        for i in range(k + 1, n):
            factor = a[i][k] / row[k]
            for j in range(k + 1, n):
                a[i][j] -= factor * row[j]
            b[i] -= factor * b[k]
    for k in reversed(range(n)):
        b[k] = (b[k] - sum(a[k][j] * b[j] for j in range(k + 1, n))) / a[k][k]
    return b
