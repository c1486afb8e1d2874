"""Aggregation of random updates against dense float64 matrices."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from collm.federated.strategies import STRATEGIES, Svd
from collm.federated.weights import member_weights
from factories.updates import best_of_rank, dense, dense_sum, random_factors, update

weights = st.floats(1e-3, 1e3)
members = st.lists(
    st.tuples(weights, st.integers(1, 5), st.integers(0, 99), st.booleans()), min_size=1, max_size=5
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    members=members, rank=st.integers(1, 14), num_in=st.integers(1, 11), num_out=st.integers(1, 11)
)
def test_svd_is_the_best_of_its_rank_of_the_dense_sum(members, rank, num_in, num_out):
    modules = {"m": (num_in, num_out)}
    base, old = random_factors(2, 101, modules), random_factors(3, 102, modules)
    total = sum(weight for weight, *_ in members)
    updates, terms = [], []
    for index, (weight, own_rank, seed, is_stale) in enumerate(members):
        factors, share = random_factors(own_rank, seed, modules), weight / total
        terms.append((share, factors))
        others = {}
        if is_stale:
            terms += [(-share, old), (share, base)]
            others = {"staleness": 1, "trained_from": old}
        updates.append(update(f"m{index}", factors, weight, **others))
    aggregate = Svd(rank).aggregate(base, updates)
    expected = best_of_rank(dense_sum(terms)["m"], rank)
    assert_close(dense(aggregate.factors)["m"], expected, atol=1e-4, rtol=1e-4)
    assert abs(sum(aggregate.weights.values()) - 1.0) < 1e-12
    assert 0.0 < aggregate.energy_share <= 1.0


@settings(max_examples=20, deadline=None, derandomize=True)
@given(shares=st.lists(weights, min_size=1, max_size=6), seed=st.integers(0, 99))
def test_equal_updates_are_a_fixed_point_of_every_strategy(shares, seed):
    factors = random_factors(3, seed)
    updates = [update(f"m{index}", factors, share) for index, share in enumerate(shares)]
    for make in STRATEGIES.values():
        forth = make(3).aggregate(None, updates).factors
        back = make(3).aggregate(None, updates[::-1]).factors
        for module, (a, b) in forth.items():
            assert_close((b @ a).double(), dense(factors)[module], atol=1e-4, rtol=1e-4)
            assert torch.equal(a, back[module][0])
            assert torch.equal(b, back[module][1])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    counts=st.dictionaries(
        st.text("abc", min_size=1, max_size=3),
        st.tuples(st.integers(1, 10**9), st.floats(0, 1e12), st.integers(0, 1000)),
        min_size=1,
    )
)
def test_weights_are_shares_whatever_is_counted(counts):
    examples, demand, staleness = ({m: c[i] for m, c in counts.items()} for i in range(3))
    shares = member_weights(examples, demand, staleness)
    assert shares.keys() == counts.keys()
    assert all(share > 0.0 for share in shares.values())
    assert abs(sum(shares.values()) - 1.0) < 1e-9
