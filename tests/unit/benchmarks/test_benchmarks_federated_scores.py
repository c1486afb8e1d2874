import pytest

from federated_scores import Score, compare

DOMAINS = {"r0": frozenset({"a"}), "r1": frozenset({"b"})}


def score(a: int, b: int) -> Score:
    """Right answers out of ten questions of each of two domains."""
    return Score.of([("a", i < a) for i in range(10)] + [("b", i < b) for i in range(10)])


def test_share_is_over_the_domains_asked_for():
    assert score(8, 2).share("a") == 0.8
    assert score(8, 2).share("ab") == 0.5


def test_members_are_compared_on_own_and_on_foreign_domains():
    local = {"r0": score(6, 1), "r1": score(2, 8)}
    found = compare(score(8, 8), score(7, 5), local, DOMAINS)
    assert found.central == 0.8
    assert found.federated == found.federated_own == found.federated_foreign == 0.6
    assert found.local == pytest.approx(0.425)
    assert found.local_own == pytest.approx(0.7)
    assert found.local_foreign == pytest.approx(0.15)
    assert found.to_central == pytest.approx(0.75)
    assert found.foreign_gain == pytest.approx(4.0)


def test_nothing_is_divided_by_zero():
    nothing = score(0, 0)
    found = compare(nothing, score(7, 5), {"r0": nothing, "r1": nothing}, DOMAINS)
    assert found.to_central is None
    assert found.foreign_gain is None
