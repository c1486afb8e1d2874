import pytest
from hypothesis import given
from hypothesis import strategies as st

from collm.pacing.quanta import (
    Quantum,
    QuantumKind,
    cut,
    evaluation_quanta,
    micro_batch_quanta,
    optimizer_quanta,
)


@given(st.integers(0, 10_000), st.integers(1, 500))
def test_cut_conserves_the_total_in_fewest_near_equal_pieces(total: int, max_piece: int) -> None:
    pieces = cut(total, max_piece)
    assert sum(pieces) == total
    assert len(pieces) == (total + max_piece - 1) // max_piece
    assert not pieces or (max(pieces) <= max_piece and max(pieces) - min(pieces) <= 1)
    assert list(pieces) == sorted(pieces, reverse=True)


def test_cut_refuses_negative_totals_and_empty_pieces() -> None:
    with pytest.raises(ValueError, match="cannot cut -1"):
        cut(-1, 4)
    with pytest.raises(ValueError, match="at most 0"):
        cut(3, 0)


def test_micro_batch_runs_forwards_then_loss_then_backwards_reversed() -> None:
    quanta = micro_batch_quanta(3, 100, (8, 7), "a")
    assert [(q.kind.value, q.size, q.index) for q in quanta] == [
        ("prepare", 100, 0),
        ("forward", 100, 0),
        ("forward", 100, 1),
        ("forward", 100, 2),
        ("loss", 8, 0),
        ("loss", 7, 1),
        ("backward", 100, 2),
        ("backward", 100, 1),
        ("backward", 100, 0),
    ]
    assert {q.adapter for q in quanta} == {"a"}


def test_evaluation_has_no_backward_and_its_own_kinds() -> None:
    kinds = [q.kind for q in evaluation_quanta(2, 64, (5,), "a")]
    assert kinds == [
        QuantumKind.PREPARE,
        QuantumKind.EVALUATE_FORWARD,
        QuantumKind.EVALUATE_FORWARD,
        QuantumKind.EVALUATE_LOSS,
    ]


def test_optimizer_update_is_cut_by_whole_layers() -> None:
    assert optimizer_quanta(5, 10, 29, "a") == (
        Quantum(QuantumKind.OPTIMIZER, 20, 0, "a"),
        Quantum(QuantumKind.OPTIMIZER, 20, 1, "a"),
        Quantum(QuantumKind.OPTIMIZER, 10, 2, "a"),
    )


def test_a_layer_larger_than_the_limit_is_one_quantum() -> None:
    assert [q.size for q in optimizer_quanta(2, 10, 9, "a")] == [10, 10]
