import pytest

from collm.cluster.planning.debt import SloDebt


def test_misses_beyond_the_target_add_up_and_are_made_up_for():
    debt = SloDebt(0.9)
    debt.observe(10, 7)
    assert debt.value == pytest.approx(0.2)
    debt.observe(10, 10)
    assert debt.value == pytest.approx(0.1)
    debt.observe(10, 10)
    debt.observe(10, 10)
    assert debt.value == 0.0


def test_a_long_outage_costs_no_more_than_the_ceiling():
    debt = SloDebt(0.9, max_debt=1.0)
    for _ in range(100):
        debt.observe(10, 0)
    assert debt.value == 1.0
    for _ in range(10):
        debt.observe(10, 10)
    assert debt.value == pytest.approx(0.0, abs=1e-9)


def test_nothing_arriving_changes_nothing():
    debt = SloDebt(0.9)
    debt.observe(10, 5)
    before = debt.value
    debt.observe(0, 0)
    assert debt.value == before
