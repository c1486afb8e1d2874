import pytest

from collm.gate.allowance import Allowance


def test_a_tenth_of_training_pays_three_evaluated_rows_for_ten_learned_ones() -> None:
    allowance = Allowance(0.1)
    assert allowance.affordable_rows == 0

    allowance.earn(1_000)  # 3,000 units, of which a tenth
    assert allowance.affordable_rows == 300

    allowance.spend(250)
    assert allowance.affordable_rows == 50


def test_the_first_grant_is_there_before_anything_was_learned() -> None:
    allowance = Allowance(0.1, initial_rows=64)
    assert allowance.affordable_rows == 64

    allowance.spend(64)
    assert allowance.affordable_rows == 0


def test_what_was_overspent_is_taken_from_what_comes_next() -> None:
    allowance = Allowance(0.5)
    allowance.spend(100)
    assert allowance.affordable_rows == 0

    allowance.earn(100)
    assert allowance.affordable_rows == 50


def test_many_small_earnings_add_up() -> None:
    allowance = Allowance(0.1)
    for _ in range(100_000):
        allowance.earn(10)

    assert allowance.affordable_rows == 300_000


def test_measured_times_price_the_rows_whatever_their_number() -> None:
    allowance = Allowance(0.1)
    allowance.earn(10_000)
    allowance.spend(2_000)
    allowance.took(learned_s=50.0)  # 5 ms a row
    allowance.took(evaluated_s=4.0)  # 2 ms a row
    assert allowance.affordable_rows == 500  # a tenth of 50 s, less 4 s

    allowance.spend(500)
    allowance.took(evaluated_s=2.0)  # slower than the rows before: more than was affordable
    assert allowance.affordable_rows == 0


def test_times_of_few_rows_price_nothing() -> None:
    allowance = Allowance(0.1, initial_rows=64)
    allowance.earn(1_000)
    allowance.spend(100)
    allowance.took(learned_s=1.0, evaluated_s=5.0)  # the first of all, and slow
    assert allowance.affordable_rows == 264


@pytest.mark.parametrize("method", ["earn", "spend"])
def test_negative_rows_are_refused(method: str) -> None:
    with pytest.raises(ValueError, match="-1 rows"):
        getattr(Allowance(0.1), method)(-1)


def test_a_negative_share_is_refused() -> None:
    with pytest.raises(ValueError, match="share -0.1"):
        Allowance(-0.1)
