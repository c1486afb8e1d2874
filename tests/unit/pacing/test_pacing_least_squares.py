import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collm.pacing.least_squares import solve_non_negative


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_solution_satisfies_the_optimality_conditions(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n + 4, n)) * 10.0 ** rng.uniform(-6, 3, size=n)
    gram = rows.T @ rows
    moment = rows.T @ rng.normal(size=n + 4)
    x = np.array(solve_non_negative(gram.tolist(), moment.tolist()))
    scale = 1 / np.sqrt(np.diag(gram))
    gradient = (gram @ x - moment) * scale
    tolerance = 1e-7 * np.abs(moment * scale).max()
    assert (x >= 0).all()
    assert (gradient >= -tolerance).all()
    assert np.abs(gradient[x > 0]).max(initial=0.0) <= tolerance


def test_unconstrained_minimum_is_returned_where_it_is_non_negative() -> None:
    # G⁻¹ m by hand: [[2, 1], [1, 3]] x = [4, 7] has x = [1, 2].
    assert solve_non_negative([[2.0, 1.0], [1.0, 3.0]], [4.0, 7.0]) == pytest.approx([1.0, 2.0])


def test_negative_coefficients_become_zero_and_the_rest_is_refitted() -> None:
    # Unconstrained: [1.4, -0.8]; with the second at zero the first is 1 / 1.
    assert solve_non_negative([[1.0, 0.5], [0.5, 1.0]], [1.0, -0.1]) == pytest.approx([1.0, 0.0])


def test_nothing_to_gain_gives_zeros() -> None:
    assert solve_non_negative([[1.0, 0.0], [0.0, 1.0]], [-1.0, 0.0]) == [0.0, 0.0]
