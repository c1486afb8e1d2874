import json
from dataclasses import replace

import pytest

from collm.cluster.planning.allocator import Allocator
from collm.cluster.planning.explain import counterfactuals, describe, explain, ledger_of
from collm.cluster.planning.problem import PairTerms
from factories.allocation_problems import PowerCurve, adapter, problem, replica, training


@pytest.fixture(scope="module")
def solved():
    names = ("r0", "r1", "r2")
    pairs = {
        (name, one): PairTerms(quality=quality, training=training())
        for name, quality in zip(names, (1.0, 0.8, 0.9), strict=True)
        for one in ("a", "b")
    }
    case = problem(
        {name: replica(debt=0.5 * (name == "r0")) for name in names},
        {"a": adapter(arrivals_per_s=5.0), "b": adapter(curve=PowerCurve(most=0.9, scale=1e5))},
        pairs,
        horizon_rounds=30.0,
    )
    return case, Allocator().solve(case)


def test_ledger_of_an_allocation_has_its_objective(solved):
    case, allocation = solved
    ledger = ledger_of(case, allocation)
    assert ledger.total == pytest.approx(allocation.objective.total)
    assert ledger.objective().learning == pytest.approx(allocation.objective.learning)


def test_description_is_json_with_inputs_and_outcome(solved):
    case, allocation = solved
    content = json.loads(json.dumps(describe(case, allocation)))
    assert content["objective"]["total"] == pytest.approx(allocation.objective.total)
    assert content["adapters"]["a"]["arrivals_per_s"] == 5.0
    assert content["replicas"]["r0"]["debt"] == 0.5
    assert content["replicas"]["r1"]["quality"] == {"a": 0.8, "b": 0.8}
    assert {one["name"] for one in content["alternatives"]} >= {
        "proportional traffic, no credit",
        "traffic concentrated",
    }


def test_no_alternative_of_one_replica_is_much_better_than_the_chosen(solved):
    case, allocation = solved
    total = allocation.objective.total
    num_seen = 0
    for name in case.replicas:
        for one in counterfactuals(case, allocation, name):
            num_seen += 1
            assert one.total <= total + 0.02 * abs(total), (name, one)
    assert num_seen >= 6


def test_words_give_the_numbers_that_decided(solved):
    case, allocation = solved
    found = explain(case, allocation, "r1")
    text = "\n".join(found["text"])
    share = allocation.traffic["a"]["r1"]
    assert f"a: {share:.1%} of 5.00 ± 0.00 requests/s" in text
    assert "the best is 1.000 on r0" in text
    assert f"price: a second of its work costs {allocation.prices['r1']:.3f}" in text
    closest = max(found["alternatives"], key=lambda one: one["total"])
    assert found["deciding"] == closest["name"]
    assert f"instead {closest['name']}: {closest['difference']:+.2f}" in text


def test_words_say_what_is_owed_and_what_is_not_known(solved):
    case, allocation = solved
    assert "for misses of the past" in "\n".join(explain(case, allocation, "r0")["text"])
    new = problem({"r0": replica(attainment=None)}, {"a": adapter()})
    assert "nothing is known" in "\n".join(explain(new, Allocator().solve(new), "r0")["text"])


def test_explaining_changes_nothing(solved):
    case, allocation = solved
    assert explain(case, allocation, "r2") == explain(case, allocation, "r2")


def test_words_say_where_traffic_stays_although_another_would_be_a_little_better(solved):
    case, allocation = solved
    assert allocation.chosen == max(allocation.alternatives, key=lambda one: one.total).name
    even = dict.fromkeys(case.replicas, 1.0 / 3.0)
    kept = replace(case, traffic={"a": even, "b": even})
    stays = Allocator().solve(kept)
    best = max(stays.alternatives, key=lambda one: one.total)
    assert stays.chosen == "traffic as it is" != best.name
    line = f"{best.name} would be worth {best.total - stays.objective.total:.2f} more"
    assert line in "\n".join(explain(kept, stays, "r1")["text"])
    assert describe(kept, stays)["chosen"] == "traffic as it is"
