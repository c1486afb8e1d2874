from random import Random

import pytest

from collm.cluster.planning.discount import Discount


def test_the_prior_lies_between_adding_up_and_averaging_out():
    discount = Discount(["a", "b", "c", "d"])
    assert discount.share("a") == 0.5
    assert Discount([]).share("a") == 1.0


def test_known_discounts_are_found_within_a_tenth():
    truth = {"a": 0.9, "b": 0.3, "c": 0.6}
    random, discount = Random(1), Discount(truth)
    for _ in range(150):
        tokens = {name: random.randint(1_000, 10_000) for name in truth}
        worth = sum(truth[name] * tokens[name] for name in truth) * random.gauss(1.0, 0.03)
        discount.observe(tokens, worth)
    for name, share in truth.items():
        assert discount.share(name) == pytest.approx(share, abs=0.1)


def test_it_stays_within_bounds():
    discount = Discount(["a", "b"])
    for _ in range(50):
        discount.observe({"a": 1_000, "b": 500}, float("inf"))
    assert discount.share("a") == 1.0
    assert 0.9 < discount.share("b") <= 1.0
    for _ in range(50):
        discount.observe({"a": 1_000, "b": 500}, 0.0)
    assert 0.0 < discount.share("a") < 0.05


def test_rounds_that_trained_nothing_change_nothing():
    discount = Discount(["a", "b"])
    before = discount.share("a")
    discount.observe({"a": 0, "b": 0}, 0.0)
    discount.observe({}, 0.0)
    assert discount.share("a") == before


def test_a_member_of_no_round_yet_counts_as_the_others():
    discount = Discount(["a"])
    discount.observe({"a": 1_000}, 500.0)
    assert discount.share("new") == discount.share("a")
