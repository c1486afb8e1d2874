import math

import pytest

from collm.federated.weights import member_weights


def test_equal_members_count_equally():
    assert member_weights({"a": 5, "b": 5}, {"a": 2.0, "b": 2.0}, {}) == {"a": 0.5, "b": 0.5}


def test_examples_count_by_their_root():
    shares = member_weights({"a": 100, "b": 400}, {}, {})
    assert shares == pytest.approx({"a": 1 / 3, "b": 2 / 3})


def test_busy_sites_count_more_by_the_root_of_their_demand():
    shares = member_weights({"a": 100, "b": 100}, {"a": 10.0, "b": 90.0}, {})
    # A tenth of the demand counts as spread evenly: 0.14 and 0.86.
    assert shares["b"] / shares["a"] == pytest.approx(math.sqrt(0.86 / 0.14))


def test_a_site_without_demand_still_teaches():
    shares = member_weights({"a": 100, "b": 100}, {"b": 50.0}, {})
    assert shares["a"] / shares["b"] == pytest.approx(math.sqrt(0.05 / 0.95))


def test_overstating_examples_gains_only_the_root():
    honest = member_weights({"a": 100, "b": 100}, {}, {})
    boasted = member_weights({"a": 10_000, "b": 100}, {}, {})
    gained = (boasted["a"] / boasted["b"]) / (honest["a"] / honest["b"])
    assert gained == pytest.approx(10.0)


def test_stale_updates_count_less():
    shares = member_weights({"a": 100, "b": 100}, {}, {"a": 3})
    assert shares["a"] / shares["b"] == pytest.approx(0.5)


def test_a_member_without_examples_has_no_share():
    assert member_weights({"a": 0, "b": 3}, {"a": 9.0}, {}) == {"a": 0.0, "b": 1.0}


def test_nobody_with_examples_is_an_error():
    with pytest.raises(ValueError, match="no member has examples"):
        member_weights({"a": 0}, {}, {})


@pytest.mark.parametrize(
    ("examples", "demand", "staleness"),
    [({"a": -1}, {}, {}), ({"a": 1}, {"a": math.nan}, {}), ({"a": 1}, {}, {"a": -2})],
)
def test_impossible_counts_are_an_error(examples, demand, staleness):
    with pytest.raises(ValueError, match="a counts"):
        member_weights(examples, demand, staleness)
