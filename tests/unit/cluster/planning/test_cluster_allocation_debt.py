"""Debt in a closed loop: rounds of allocating, serving on a made-up plant, and remembering."""

from dataclasses import dataclass

from collm.cluster.planning.allocator import Allocator
from factories.allocation_problems import Knee, PowerCurve, adapter, problem, replica

TARGET = 0.9
MAX_DEBT = 1.0
PRICE = 10.0
"""Quality that a round of debt makes each miss cost."""
BELIEVED = Knee(capacity=4.0, steepness=6.0)
TRUE = Knee(capacity=3.4, steepness=6.0)
"""The plant bears less than is believed, so that credit costs more than planned."""


@dataclass
class Loop:
    """One replica; Z ← clip(Z + target - attained, 0, Z_max) after each round with arrivals."""

    debt: float = 0.0

    def round(self, arrivals_per_s: float, load: float) -> tuple[float, float]:
        """Plan for a forecast, serve a load; return the credit given and what was attained."""
        terms = replica(attainment=BELIEVED, debt=PRICE * self.debt)
        case = problem(
            {"r0": terms},
            {"a": adapter(arrivals_per_s=arrivals_per_s, curve=PowerCurve(most=1.0))},
            horizon_rounds=20.0,
        )
        credit = Allocator().solve(case).credit_share("r0")
        attained = TRUE.probability(load, credit)
        if load > 0.0:
            self.debt = min(max(self.debt + TARGET - attained, 0.0), MAX_DEBT)
        return credit, attained


def test_attainment_comes_back_to_target_after_a_burst():
    loop = Loop()
    for _ in range(30):
        loop.round(1.8, 1.8)
    for _ in range(5):
        loop.round(1.8, 4.5)  # nobody foresaw it
    assert loop.debt == MAX_DEBT
    after = [loop.round(1.8, 1.8)[1] for _ in range(60)]
    assert sum(after[:40]) / 40 >= TARGET
    assert abs(sum(after[-20:]) / 20 - TARGET) < 0.05 or sum(after[-20:]) / 20 > TARGET


def test_debt_of_a_long_outage_is_paid_as_fast_as_that_of_a_short_one():
    def rounds_to_recover(num_bad_rounds: int) -> int:
        loop = Loop()
        for _ in range(num_bad_rounds):
            loop.round(1.8, 6.0)
        for count in range(1, 200):
            loop.round(1.8, 1.8)
            if loop.debt < 0.05:
                return count
        raise AssertionError("the debt was never paid")

    assert rounds_to_recover(100) == rounds_to_recover(5)


def test_rounds_without_arrivals_leave_the_debt_as_it_is():
    loop = Loop(debt=0.4)
    loop.round(0.0, 0.0)
    assert loop.debt == 0.4


def test_debt_lowers_credit_and_its_payment_gives_it_back():
    loop = Loop()
    free = loop.round(1.8, 1.8)[0]
    loop.debt = MAX_DEBT
    owing = loop.round(1.8, 1.8)[0]
    assert owing < free
    loop.debt = 0.0
    assert loop.round(1.8, 1.8)[0] == free
