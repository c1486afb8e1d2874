"""Why an allocation is as it is: its numbers as JSON, and one replica's part in words."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from collm.cluster.planning.allocation import Allocation, Alternative
from collm.cluster.planning.allocator import MOVE_SHARE
from collm.cluster.planning.ledger import Change, Ledger
from collm.cluster.planning.problem import AllocationProblem

_LITTLE = 5e-4


def describe(problem: AllocationProblem, allocation: Allocation) -> dict[str, Any]:
    """Return inputs and outcome as plain JSON values, for the journal and for people."""
    ledger = ledger_of(problem, allocation)
    return {
        "round_s": problem.round_s,
        "horizon_rounds": problem.horizon_rounds,
        "miss_price": problem.miss_price,
        "objective": {
            **asdict(allocation.objective),
            "total": allocation.objective.total,
        },
        "alternatives": [asdict(one) for one in allocation.alternatives],
        "chosen": allocation.chosen,
        "adapters": {
            name: {
                "arrivals_per_s": terms.arrivals_per_s,
                "arrivals_std_per_s": terms.arrivals_std_per_s,
                "min_arrivals_per_s": terms.min_arrivals_per_s,
                "has_curve": terms.curve is not None,
                "expected_tokens": ledger.tokens[j],
                "quality_gain": ledger.gains[j],
                "token_price": ledger.price_of_tokens(j),
                "traffic": dict(allocation.traffic[name]),
                "members": list(allocation.members.get(name, ())),
            }
            for j, (name, terms) in enumerate(problem.adapters.items())
        },
        "replicas": {
            name: {
                "debt": terms.debt,
                "max_credit_share": terms.max_credit_share,
                "is_known": terms.attainment is not None,
                "price": allocation.prices[name],
                **asdict(allocation.expected[name]),
                "quality": _qualities(problem, name),
                "grants": {
                    adapter: asdict(grant)
                    for adapter, grant in allocation.grants.get(name, {}).items()
                },
            }
            for name, terms in problem.replicas.items()
        },
    }


def _qualities(problem: AllocationProblem, replica_id: str) -> dict[str, float]:
    pairs = ((a, problem.pairs.get((replica_id, a))) for a in problem.adapters)
    return {a: pair.quality for a, pair in pairs if pair is not None and pair.quality is not None}


def ledger_of(problem: AllocationProblem, allocation: Allocation) -> Ledger:
    """Return the ledger of an allocation, to try changes on."""
    ledger = Ledger(problem)
    ledger.restore(
        [
            Change(
                i,
                {j: allocation.traffic[ledger.adapters[j]][place.replica_id] for j in place.worth},
                allocation.credit_share(place.replica_id),
                tuple(
                    allocation.grants[place.replica_id][ledger.adapters[j]].time_share
                    for j in place.trained
                ),
            )
            for i, place in enumerate(ledger.places)
        ]
    )
    return ledger


def explain(problem: AllocationProblem, allocation: Allocation, replica_id: str) -> dict[str, Any]:
    """Return why a replica has its part: inputs, what else it could do, and that in words.

    Returns:
        ``replica``, ``inputs``, ``alternatives`` (each with the objective's total and its distance
        from the chosen one), ``deciding`` (the alternative that came closest) and ``text``, lines
        for people.
    """
    content = describe(problem, allocation)
    others = counterfactuals(problem, allocation, replica_id)
    total = allocation.objective.total
    closest = max(others, key=lambda one: one.total, default=None)
    own = content["replicas"][replica_id]
    shares = {
        name: shares[replica_id]
        for name, shares in allocation.traffic.items()
        if replica_id in shares
    }
    return {
        "replica": replica_id,
        "inputs": {**own, "traffic": shares, "adapters": content["adapters"]},
        "alternatives": [{**asdict(one), "difference": one.total - total} for one in others],
        "deciding": None if closest is None else closest.name,
        "text": [
            *_traffic_lines(content, own, shares),
            *_stay_lines(allocation),
            *_training_lines(content, own),
            *_price_lines(own),
            *_alternative_lines(others, total),
        ],
    }


def counterfactuals(
    problem: AllocationProblem, allocation: Allocation, replica_id: str
) -> tuple[Alternative, ...]:
    """Return what the objective would be if this replica did something else, all others the same.

    Traffic that it would not have goes to the others as they share the rest.
    """
    ledger = ledger_of(problem, allocation)
    place_of = {place.replica_id: i for i, place in enumerate(ledger.places)}
    i = place_of[replica_id]
    place, total = ledger.places[i], ledger.total
    found = []
    for name, credit in (("no credit", 0.0), ("the most credit", place.max_credit)):
        if abs(credit - place.credit) > _LITTLE:
            found.append(Alternative(name, total + ledger.try_credit(i, credit)))
    even = _even_division(place.division)
    if even != place.division:
        change = Change(i, place.shares, place.credit, even)
        gained = ledger.try_changes((change,))
        found.append(Alternative("training time divided evenly", total + gained))
    for name, factor in (("no traffic", 0.0), ("half of its traffic", 0.5), ("twice", 2.0)):
        changes = _with_traffic(ledger, i, factor)
        if changes:
            found.append(Alternative(name, total + ledger.try_changes(changes)))
    return tuple(found)


def _even_division(division: Sequence[float]) -> tuple[float, ...]:
    return (1.0 / len(division),) * len(division) if division else ()


def _with_traffic(ledger: Ledger, i: int, factor: float) -> list[Change]:
    """Return the changes that give replica ``i`` so many times its traffic."""
    shares = [dict(place.shares) for place in ledger.places]
    has_changed = False
    for j, share in ledger.places[i].shares.items():
        wanted = min(share * factor, 1.0)
        rest = 1.0 - share
        if abs(wanted - share) < _LITTLE or rest < _LITTLE:
            continue
        has_changed = True
        for other in ledger.servers[j]:
            shares[other][j] *= (1.0 - wanted) / rest
        shares[i][j] = wanted
    if not has_changed:
        return []
    return [
        Change(k, shares[k], place.credit, place.division) for k, place in enumerate(ledger.places)
    ]


def _traffic_lines(
    content: Mapping[str, Any], own: Mapping[str, Any], shares: Mapping[str, float]
) -> list[str]:
    lines = []
    for adapter, share in shares.items():
        terms = content["adapters"][adapter]
        qualities = {
            name: one["quality"][adapter]
            for name, one in content["replicas"].items()
            if adapter in one["quality"]
        }
        best = max(qualities, key=lambda name: (qualities[name], name))
        quality = own["quality"][adapter]
        beside = "the best there is"
        if quality < qualities[best]:
            beside = f"the best is {qualities[best]:.3f} on {best}"
        lines.append(
            f"{adapter}: {share:.1%} of {terms['arrivals_per_s']:.2f} ± "
            f"{terms['arrivals_std_per_s']:.2f} requests/s; its quality here is {quality:.3f}, "
            f"{beside}"
        )
    if not own["is_known"]:
        return [*lines, "nothing is known of its speed yet: its shares are proportional"]
    return [
        *lines,
        f"with {own['arrivals_per_s']:.2f} requests/s, {own['attainment']:.1%} are expected to "
        f"meet their objectives, and {own['free_share']:.1%} of its time to be free",
    ]


def _stay_lines(allocation: Allocation) -> list[str]:
    """Say where traffic was kept for its own sake."""
    best = max(allocation.alternatives, key=lambda one: one.total)
    chosen = next(one for one in allocation.alternatives if one.name == allocation.chosen)
    if chosen.total == best.total:
        return []
    return [
        f"{chosen.name}: {best.name} would be worth {best.total - chosen.total:.2f} more, and "
        f"other traffic must be worth {MOVE_SHARE:.0%} more, as requests end where they are"
    ]


def _training_lines(content: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    lines = []
    for adapter, grant in own["grants"].items():
        price = content["adapters"][adapter]["token_price"]
        lines.append(
            f"{adapter}: {grant['time_share']:.0%} of its training time, "
            f"{grant['credit_share']:.1%} of all time as credit, "
            f"steps of {grant['batch_tokens']} tokens; "
            f"{grant['expected_tokens']:.0f} effective tokens are expected, worth {price:.3g} each"
        )
    if own["grants"] and own["max_credit_share"] == 0.0:
        lines.append("credit is not allowed (max_credit_share is 0): it trains in free time alone")
    if own["debt"] > 0.0:
        lines.append(f"each missed request counts {own['debt']:.2f} more, for misses of the past")
    return lines


def _price_lines(own: Mapping[str, Any]) -> list[str]:
    return [
        f"price: a second of its work costs {own['price']:.3f} in what its other requests and its "
        "training lose; the router follows shares, and prices for adapters that have none"
    ]


def _alternative_lines(others: Sequence[Alternative], total: float) -> list[str]:
    lines = [f"chosen: {total:.2f} requests × quality"]
    for one in sorted(others, key=lambda one: -one.total):
        lines.append(f"instead {one.name}: {one.total - total:+.2f}")
    return lines
