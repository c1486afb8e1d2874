"""Low-rank algebra against dense float64 matrices."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from collm.lora.algebra import combine, rebase_terms, truncated_product
from collm.lora.layout import lora_layout
from collm.lora.state import AdapterState, initial_state
from collm.model.spec import ModelSpec
from factories.checkpoints import tiny_config
from factories.engines import random_adapter

SPEC = ModelSpec.from_config(tiny_config("llama", num_hidden_layers=1).to_dict())
# float32 factors against float64 matrices
TOLERANCE = {"atol": 1e-5, "rtol": 1e-4}


def dense(state: AdapterState) -> dict[str, Tensor]:
    return {
        f"{factors.layer}.{part.module}": b.double() @ a.double()
        for factors in state.layout.views(state.flat)
        for part, a, b in factors.parts()
    }


def best_of_rank(matrix: Tensor, rank: int) -> Tensor:
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return u[:, :rank] * s[:rank] @ vh[:rank]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    num_in=st.integers(1, 12),
    num_out=st.integers(1, 12),
    inner=st.integers(1, 16),
    rank=st.integers(1, 16),
    seed=st.integers(0, 100),
)
def test_truncated_product_is_the_best_approximation(num_in, num_out, inner, rank, seed):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(inner, num_in, generator=generator)
    b = torch.randn(num_out, inner, generator=generator)
    new_a, new_b = truncated_product(a, b, rank)
    assert new_a.shape == (rank, num_in)
    assert new_b.shape == (num_out, rank)
    expected = best_of_rank(b.double() @ a.double(), rank)
    assert_close(new_b.double() @ new_a.double(), expected, atol=1e-4, rtol=1e-4)
    # Singular values are split evenly: both factors have the same Gram matrix.
    assert_close(new_a @ new_a.T, new_b.T @ new_b, atol=1e-3, rtol=1e-3)


def test_truncated_product_of_nothing_is_nothing():
    a, b = truncated_product(torch.randn(3, 5), torch.zeros(4, 3), 2)
    assert not a.any()
    assert not b.any()


def test_combine_weighs_and_adds_updates_of_unequal_ranks():
    terms = [(0.5, random_adapter(SPEC, 2, 1)), (-2.0, random_adapter(SPEC, 3, 2)),
             (0.25, random_adapter(SPEC, 1, 3))]  # fmt: skip
    combined = dense(combine(terms, lora_layout(SPEC, 6)))
    for module, matrix in combined.items():
        expected = sum(weight * dense(state)[module] for weight, state in terms)
        assert_close(matrix, expected, **TOLERANCE)


def test_combine_truncates_to_the_best_of_the_layouts_rank():
    terms = [(1.0, random_adapter(SPEC, 4, 1)), (1.0, random_adapter(SPEC, 4, 2))]
    combined = dense(combine(terms, lora_layout(SPEC, 3)))
    for module, matrix in combined.items():
        expected = best_of_rank(sum(dense(state)[module] for _, state in terms), 3)
        assert_close(matrix, expected, **TOLERANCE)


def test_equal_updates_are_a_fixed_point_and_order_does_not_matter():
    first, second = random_adapter(SPEC, 4, 1), random_adapter(SPEC, 4, 2)
    layout = lora_layout(SPEC, 8)
    same = dense(combine([(0.3, first), (0.7, first)], lora_layout(SPEC, 4)))
    forth = dense(combine([(0.3, first), (0.7, second)], layout))
    back = dense(combine([(0.7, second), (0.3, first)], layout))
    for module in same:
        assert_close(same[module], dense(first)[module], **TOLERANCE)
        assert_close(forth[module], back[module], **TOLERANCE)


@pytest.mark.parametrize("terms", [
    [(1.0, random_adapter(SPEC, 2, 1))],
    [(1.0, random_adapter(SPEC, 2, 1)), (-1.0, random_adapter(SPEC, 2, 1))],
    [(1.0, initial_state(lora_layout(SPEC, 4), 0))],
])  # fmt: skip
def test_dimensions_that_a_sum_leaves_unused_can_still_learn(terms):
    """With A and B both zero, no gradient would ever reach a dimension again."""
    combined = combine(terms, lora_layout(SPEC, 6))
    expected = {
        module: sum(weight * dense(state)[module] for weight, state in terms)
        for module in dense(terms[0][1])
    }
    for module, matrix in dense(combined).items():
        assert_close(matrix, expected[module], **TOLERANCE)
    for factors in combined.layout.views(combined.flat):
        for _, a, b in factors.parts():
            assert (a.abs().sum(dim=1) > 0.1).all(), "every row of A passes something on"
            assert int(b.any(dim=0).sum()) <= 2, "unused columns of B are exactly zero"
    assert combined.digest() == combine(terms, lora_layout(SPEC, 6)).digest()


def test_rebase_carries_over_what_was_learned_since():
    old, new = random_adapter(SPEC, 2, 1), random_adapter(SPEC, 2, 2)
    learned = random_adapter(SPEC, 2, 3)
    shadow = combine([(1.0, old), (1.0, learned)], lora_layout(SPEC, 8))
    carried = dense(combine(rebase_terms(shadow, old, new), shadow.layout))
    for module, matrix in carried.items():
        assert_close(matrix, dense(new)[module] + dense(learned)[module], **TOLERANCE)


def test_rebase_of_a_shadow_that_started_from_nothing():
    new, shadow = random_adapter(SPEC, 2, 2), random_adapter(SPEC, 4, 3)
    carried = combine(rebase_terms(shadow, None, new), shadow.layout)
    assert carried.layout == shadow.layout
    for module, matrix in dense(carried).items():
        expected = best_of_rank(dense(new)[module] + dense(shadow)[module], 4)
        assert_close(matrix, expected, **TOLERANCE)


def test_rebase_of_a_shadow_that_learned_nothing_is_the_new_version():
    old, new = random_adapter(SPEC, 3, 1), random_adapter(SPEC, 3, 2)
    for module, matrix in dense(combine(rebase_terms(old, old, new), old.layout)).items():
        assert_close(matrix, dense(new)[module], **TOLERANCE)
