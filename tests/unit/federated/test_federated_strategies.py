"""Aggregation against dense float64 matrices."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from collm.errors import RoundError
from collm.federated.aggregate_plan import StrategyName
from collm.federated.strategies import STRATEGIES, FedAvg, Svd
from factories.updates import best_of_rank, dense, dense_sum, norm, random_factors, update

# float32 results against float64 matrices
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}
ALL = pytest.mark.parametrize("strategy", [make(4, 1.0) for make in STRATEGIES.values()])


def test_every_name_has_a_strategy():
    assert set(STRATEGIES) == set(StrategyName)


def test_svd_is_the_exact_weighted_sum_when_the_rank_allows():
    first, second = random_factors(3, 1), random_factors(3, 2)
    aggregate = Svd(6).aggregate(None, [update("a", first, 1.0), update("b", second, 3.0)])
    expected = dense_sum([(0.25, first), (0.75, second)])
    for module, matrix in dense(aggregate.factors).items():
        assert_close(matrix, expected[module], **TOLERANCE)
    assert aggregate.energy_share == pytest.approx(1.0, abs=1e-12)


def test_svd_takes_mixed_ranks_and_gives_its_own():
    updates = [
        (0.5, random_factors(1, 1)),
        (0.3, random_factors(4, 2)),
        (0.2, random_factors(2, 3)),
    ]
    members = [update(f"m{i}", factors, weight) for i, (weight, factors) in enumerate(updates)]
    aggregate = Svd(7).aggregate(None, members)
    expected = dense_sum(updates)
    for module, (a, b) in aggregate.factors.items():
        assert (a.shape[0], b.shape[1]) == (7, 7)
        assert (a.dtype, b.dtype) == (torch.float32, torch.float32)
        assert_close(b.double() @ a.double(), expected[module], **TOLERANCE)


def test_svd_keeps_the_best_of_its_rank_and_says_how_much_that_is():
    updates = [(0.5, random_factors(4, 1)), (0.5, random_factors(4, 2))]
    members = [update(f"m{i}", factors) for i, (_, factors) in enumerate(updates)]
    aggregate = Svd(3).aggregate(None, members)
    expected = dense_sum(updates)
    for module, matrix in dense(aggregate.factors).items():
        assert_close(matrix, best_of_rank(expected[module], 3), **TOLERANCE)
    kept = norm(dense(aggregate.factors)) ** 2 / norm(expected) ** 2
    assert aggregate.energy_share == pytest.approx(kept, abs=1e-6)
    assert 0.3 < aggregate.energy_share < 0.99


def test_svd_leaves_unused_dimensions_able_to_learn():
    """With A and B both zero, no gradient would ever reach a dimension again."""
    factors = random_factors(2, 1)
    aggregate = Svd(5).aggregate(None, [update("a", factors)])
    for a, b in aggregate.factors.values():
        assert (a.abs().sum(dim=1) > 0.1).all()
        assert int(b.any(dim=0).sum()) == 2


@ALL
def test_equal_updates_are_a_fixed_point(strategy):
    factors = random_factors(4, 1)
    members = [update("a", factors, 0.3), update("b", factors, 5.0), update("c", factors, 0.01)]
    aggregate = strategy.aggregate(None, members)
    for module, matrix in dense(aggregate.factors).items():
        assert_close(matrix, dense(factors)[module], **TOLERANCE)
    assert aggregate.bias_share == pytest.approx(0.0, abs=1e-7)
    assert aggregate.energy_share == pytest.approx(1.0, abs=1e-12)


@ALL
def test_order_of_updates_does_not_change_a_bit(strategy):
    base, old = random_factors(4, 8), random_factors(4, 9)
    members = [
        update("b", random_factors(4, 1), 0.7),
        update("a", random_factors(4, 2), 0.2),
        update("c", random_factors(4, 3), 1.9, staleness=1, trained_from=old),
    ]
    results = [strategy.aggregate(base, list(order)) for order in itertools.permutations(members)]
    for result in results[1:]:
        assert result.weights == results[0].weights
        assert result.bias_share == results[0].bias_share
        for module, (a, b) in result.factors.items():
            assert torch.equal(a, results[0].factors[module][0])
            assert torch.equal(b, results[0].factors[module][1])


@ALL
def test_weights_sum_to_one_and_keep_their_ratios(strategy):
    members = [update("a", random_factors(4, 1), 2.0), update("b", random_factors(4, 2), 6.0)]
    assert strategy.aggregate(None, members).weights == {"a": 0.25, "b": 0.75}


def test_svd_moves_a_stale_update_to_the_current_base():
    base, old = random_factors(2, 8), random_factors(3, 9)
    fresh, stale = random_factors(2, 1), random_factors(2, 2)
    aggregate = Svd(12).aggregate(
        base,
        [update("a", fresh, 0.6), update("b", stale, 0.4, staleness=2, trained_from=old)],
    )
    expected = dense_sum([(0.6, fresh), (0.4, stale), (-0.4, old), (0.4, base)])
    for module, matrix in dense(aggregate.factors).items():
        assert_close(matrix, expected[module], **TOLERANCE)


@pytest.mark.parametrize("rate", [0.5, 1.7])
def test_svd_goes_as_far_from_the_base_as_it_is_told(rate):
    base, old = random_factors(2, 8), random_factors(3, 9)
    fresh, stale = random_factors(2, 1), random_factors(2, 2)
    aggregate = Svd(12, rate).aggregate(
        base,
        [update("a", fresh, 0.6), update("b", stale, 0.4, staleness=2, trained_from=old)],
    )
    mean = [(0.6, fresh), (0.4, stale), (-0.4, old), (0.4, base)]
    expected = dense_sum([(rate * weight, part) for weight, part in mean] + [(1.0 - rate, base)])
    for module, matrix in dense(aggregate.factors).items():
        assert_close(matrix, expected[module], **TOLERANCE)


@pytest.mark.parametrize("make", STRATEGIES.values())
def test_from_a_fresh_adapter_the_rate_stretches_the_whole_update(make):
    factors = random_factors(4, 1)
    aggregate = make(4, 1.7).aggregate(None, [update("a", factors)])
    for module, matrix in dense(aggregate.factors).items():
        assert_close(matrix, 1.7 * dense(factors)[module], **TOLERANCE)


def test_fedavg_goes_on_from_the_base_factor_by_factor():
    base, factors = random_factors(4, 8), random_factors(4, 1)
    aggregate = FedAvg(4, 2.0).aggregate(base, [update("a", factors)])
    for module, found in aggregate.factors.items():
        for result, new, old in zip(found, factors[module], base[module], strict=True):
            assert_close(result, 2.0 * new - old, **TOLERANCE)


def test_svd_adds_a_stale_update_of_a_fresh_adapter_to_the_base():
    base, stale = random_factors(2, 8), random_factors(2, 2)
    aggregate = Svd(4).aggregate(base, [update("b", stale, staleness=1)])
    expected = dense_sum([(1.0, stale), (1.0, base)])
    for module, matrix in dense(aggregate.factors).items():
        assert_close(matrix, expected[module], **TOLERANCE)
    assert aggregate.bias_share is None


@ALL
def test_stale_update_that_learned_nothing_is_the_current_base(strategy):
    base, old = random_factors(4, 8), random_factors(4, 9)
    aggregate = strategy.aggregate(base, [update("a", old, staleness=1, trained_from=old)])
    for module, matrix in dense(aggregate.factors).items():
        assert_close(matrix, dense(base)[module], **TOLERANCE)


def test_a_base_may_adapt_fewer_modules_than_what_was_trained_from_it():
    base, stale = random_factors(2, 8), random_factors(2, 2)
    (_, factors), (name, _) = base.items()
    part = {next(iter(base)): factors}
    aggregate = Svd(6).aggregate(part, [update("b", stale, staleness=1, trained_from=part)])
    for module in (name, *part):
        assert_close(dense(aggregate.factors)[module], dense(stale)[module], **TOLERANCE)


def test_fedavg_averages_the_factors():
    first, second = random_factors(4, 1), random_factors(4, 2)
    aggregate = FedAvg(4).aggregate(None, [update("a", first, 1.0), update("b", second, 3.0)])
    for module, (a, b) in aggregate.factors.items():
        assert_close(a, 0.25 * first[module][0] + 0.75 * second[module][0])
        assert_close(b, 0.25 * first[module][1] + 0.75 * second[module][1])
    assert aggregate.energy_share == 1.0


def test_fedavg_moves_a_stale_update_factor_by_factor():
    base, old, stale = (random_factors(4, seed) for seed in (1, 2, 3))
    aggregate = FedAvg(4).aggregate(base, [update("a", stale, staleness=1, trained_from=old)])
    for module, (a, b) in aggregate.factors.items():
        assert_close(a, stale[module][0] - old[module][0] + base[module][0])
        assert_close(b, stale[module][1] - old[module][1] + base[module][1])


@ALL
def test_bias_is_what_plain_averaging_gets_wrong(strategy):
    first, second = random_factors(4, 1), random_factors(4, 2)
    aggregate = strategy.aggregate(None, [update("a", first, 0.4), update("b", second, 0.6)])
    exact = dense_sum([(0.4, first), (0.6, second)])
    mean = {
        module: (0.4 * b1 + 0.6 * b2).double() @ (0.4 * a1 + 0.6 * a2).double()
        for module, (a1, b1), (a2, b2) in zip(exact, first.values(), second.values(), strict=True)
    }
    wrong = norm({module: exact[module] - mean[module] for module in exact})
    assert aggregate.bias_share == pytest.approx(wrong / norm(exact), rel=1e-6)


def test_bias_pads_smaller_ranks_by_zeros():
    first, second = random_factors(3, 1), random_factors(1, 2)
    aggregate = Svd(4).aggregate(None, [update("a", first), update("b", second)])
    exact = dense_sum([(0.5, first), (0.5, second)])
    wrong = {}
    for module in exact:
        a, b = (factor.clone() for factor in first[module])
        a[:1] += second[module][0]
        b[:, :1] += second[module][1]
        wrong[module] = exact[module] - 0.25 * b.double() @ a.double()
    assert aggregate.bias_share == pytest.approx(norm(wrong) / norm(exact), rel=1e-6)


@ALL
def test_sum_of_nothing_is_nothing(strategy):
    zero = {name: (a, torch.zeros_like(b)) for name, (a, b) in random_factors(4, 1).items()}
    aggregate = strategy.aggregate(None, [update("a", zero)])
    assert (aggregate.bias_share, aggregate.energy_share) == (0.0, 1.0)
    assert not any(b.any() for _, b in aggregate.factors.values())


def test_fedavg_refuses_mixed_ranks_by_name():
    members = [update("a", random_factors(4, 1)), update("b", random_factors(3, 2))]
    with pytest.raises(RoundError, match=r"^b: .*rank 3; fedavg needs 4") as caught:
        FedAvg(4).aggregate(None, members)
    assert caught.value.member == "b"


def test_fedavg_refuses_a_stale_update_of_a_fresh_adapter():
    stale = update("a", random_factors(4, 1), staleness=1)
    with pytest.raises(RoundError, match="a: stale, and a fresh adapter's factors are not known"):
        FedAvg(4).aggregate(random_factors(4, 2), [stale])


@ALL
@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_useless_weights_are_refused(strategy, weight):
    with pytest.raises(RoundError, match="a: weight is"):
        strategy.aggregate(None, [update("a", random_factors(4, 1), weight)])


@ALL
def test_a_member_counts_once(strategy):
    factors = random_factors(4, 1)
    with pytest.raises(RoundError, match="a: more than one update"):
        strategy.aggregate(None, [update("a", factors), update("a", factors)])


@ALL
def test_updates_of_other_modules_are_refused(strategy):
    factors = random_factors(4, 1)
    fewer = dict([next(iter(factors.items()))])
    with pytest.raises(RoundError, match="b: other modules than a"):
        strategy.aggregate(None, [update("a", factors), update("b", fewer)])


@ALL
def test_no_updates_are_refused(strategy):
    with pytest.raises(RoundError, match="no updates"):
        strategy.aggregate(None, [])
