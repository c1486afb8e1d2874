from collections import Counter

import pytest

from collm.training.shares import FairShares


def deal(shares: FairShares, names: str, turns: int, seconds: float = 1.0) -> Counter[str]:
    counts: Counter[str] = Counter()
    for _ in range(turns):
        name = shares.choose(names)
        shares.spend(name, seconds)
        counts[name] += 1
    return counts


def shares_of(**weights: float) -> FairShares:
    shares = FairShares()
    for name, weight in weights.items():
        shares.add(name, weight)
    return shares


def test_turns_follow_weights() -> None:
    assert deal(shares_of(a=1.0, b=3.0), "ab", 400) == {"a": 100, "b": 300}


def test_ties_go_to_the_earliest_added() -> None:
    assert shares_of(b=1.0, a=1.0).choose("ab") == "b"


def test_time_counts_and_not_turns() -> None:
    shares = shares_of(a=1.0, b=1.0)
    counts: Counter[str] = Counter()
    for _ in range(400):
        name = shares.choose("ab")
        shares.spend(name, 3.0 if name == "a" else 1.0)
        counts[name] += 1
    assert counts["b"] / counts["a"] == pytest.approx(3.0, rel=0.05)


def test_a_late_joiner_does_not_catch_up_on_the_past() -> None:
    shares = shares_of(a=1.0, b=1.0)
    deal(shares, "ab", 1_000)
    shares.add("c", 1.0)
    assert deal(shares, "abc", 300) == {"a": 100, "b": 100, "c": 100}


def test_who_rested_does_not_catch_up_on_the_past() -> None:
    shares = shares_of(a=1.0, b=1.0)
    deal(shares, "ab", 10)
    deal(shares, "a", 1_000)
    assert deal(shares, "ab", 100) == {"a": 50, "b": 50}


def test_who_worked_alone_is_not_punished_when_a_newcomer_came_meanwhile() -> None:
    shares = shares_of(a=1.0)
    deal(shares, "a", 1_000)
    shares.add("b", 1.0)
    deal(shares, "b", 10)  # a rests
    counts = deal(shares, "ab", 100)
    assert abs(counts["a"] - counts["b"]) <= 12


def test_who_left_is_forgotten() -> None:
    shares = shares_of(a=1.0, b=1.0)
    shares.remove("a")
    assert deal(shares, "b", 3) == {"b": 3}
    shares.add("a", 1.0)
    assert deal(shares, "ab", 10)["a"] == 5
