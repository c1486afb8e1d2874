import pytest

from collm.cluster.planning.tabulated import Tabulated
from factories.allocation_problems import Knee


class Counted:
    def __init__(self):
        self.knee, self.num_asked = Knee(), 0

    def probability(self, arrivals_per_s, credit_share):
        self.num_asked += 1
        return self.knee.probability(arrivals_per_s, credit_share)

    def free_share(self, arrivals_per_s):
        self.num_asked += 1
        return self.knee.free_share(arrivals_per_s)


def test_answers_are_close_at_any_load_and_exact_when_idle():
    table, knee = Tabulated(Knee()), Knee()
    for number in range(1_000):
        load = 8.0 * number / 1_000
        for credit in (0.0, 0.2):
            exact = knee.probability(load, credit)
            assert table.probability(load, credit) == pytest.approx(exact, abs=0.02)
        assert table.free_share(load) == pytest.approx(knee.free_share(load), abs=0.01)
    assert table.probability(0.0, 0.2) == 1.0
    assert table.free_share(0.0) == 1.0


def test_chance_keeps_falling_in_the_load():
    table = Tabulated(Knee())
    chances = [table.probability(0.01 * number, 0.1) for number in range(1_000)]
    assert chances == sorted(chances, reverse=True)


def test_few_answers_are_computed_for_many_questions():
    counted = Counted()
    table = Tabulated(counted)
    for number in range(10_000):
        table.probability(1.0 + 1e-4 * number, 0.0)
        table.free_share(1.0 + 1e-4 * number)
    assert counted.num_asked <= 16
