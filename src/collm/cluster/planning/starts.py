"""Shares of the traffic to begin a search from: pure functions of a ledger's places."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from collm.cluster.planning.ledger import Ledger, Shares
from collm.cluster.planning.tabulated import LOADS

_KNEE = 0.9
"""A replica's capacity is the load that leaves its chance this share of an idle one's."""
_MAX_LOAD = 1e4
_HALVINGS = 20
_USUAL = bisect_left(LOADS, 1.0)
_STRIDE = 8
"""Places of the table: where to look first, and how far on next."""
_MOST_FULL = 6
"""Replicas of which each is tried as the one that gets all that is too much."""


def capacities(ledger: Ledger) -> list[float]:
    """Return the requests per second that each replica bears, relative to the others.

    A replica of which nothing is known counts as the mean of the others.
    """
    known = [_knee(ledger, i) if place.is_known else None for i, place in enumerate(ledger.places)]
    measured = [one for one in known if one is not None]
    mean = sum(measured) / len(measured) if measured else 1.0
    return [mean if one is None else one for one in known]


def _knee(ledger: Ledger, i: int) -> float:
    probability = ledger.places[i].attainment.probability
    limit = _KNEE * probability(0.0, 0.0)
    if ledger.is_coarse:
        return _knee_on_table(probability, limit)
    low, high = 1e-3, 1.0
    while high < _MAX_LOAD and probability(high, 0.0) > limit:
        low, high = high, 4.0 * high
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        if probability(middle, 0.0) > limit:
            low = middle
        else:
            high = middle
        if high < 1.02 * low:
            break
    return low


def _knee_on_table(probability: Callable[[float, float], float], limit: float) -> float:
    """Return the highest load of the table whose chance is above a limit, as halving finds it."""
    low, high = 1, _USUAL
    while high < len(LOADS) - 1 and probability(LOADS[high], 0.0) > limit:
        low, high = high, min(high + _STRIDE, len(LOADS) - 1)
    while high - low > 1:
        middle = (low + high) // 2
        if probability(LOADS[middle], 0.0) > limit:
            low = middle
        else:
            high = middle
    return LOADS[low]


def proportional(ledger: Ledger, capacity: Sequence[float]) -> Shares:
    """Return shares in proportion to capacities, each adapter's over those that serve it."""
    shares: list[dict[int, float]] = [{} for _ in ledger.places]
    for j, servers in enumerate(ledger.servers):
        whole = sum(capacity[i] for i in servers)
        for i in servers:
            shares[i][j] = capacity[i] / whole if whole > 0.0 else 1.0 / len(servers)
    return shares


def even(ledger: Ledger) -> Shares:
    """Return the same share for each replica that serves an adapter."""
    return proportional(ledger, [1.0] * len(ledger.places))


def as_it_is(ledger: Ledger, traffic: Mapping[str, Mapping[str, float]]) -> Shares | None:
    """Return the shares in force, as far as who has them is still there; ``None`` without any."""
    shares: list[dict[int, float]] = [dict.fromkeys(place.worth, 0.0) for place in ledger.places]
    for j, adapter in enumerate(ledger.adapters):
        own = traffic.get(adapter, {})
        held = {i: own.get(ledger.places[i].replica_id, 0.0) for i in ledger.servers[j]}
        whole = sum(held.values())
        if whole <= 0.0 < len(held):
            return None
        for i, share in held.items():
            shares[i][j] = share / whole
    return shares


def overflowing(ledger: Ledger, capacity: Sequence[float]) -> list[tuple[str, Shares]]:
    """Return, when there is more traffic than all bear, shares that spare all replicas but one.

    What would make every replica miss its objectives makes one miss all of them. Which one is best,
    and of which adapter it should get the rest, is not known beforehand: each of the first few
    replicas is tried with the same part of every adapter, and with one adapter's first.

    Returns:
        Where the rest goes, in words, with the shares.
    """
    arrivals, whole = sum(ledger.arrivals), sum(capacity)
    if arrivals <= whole:
        return []
    found: list[tuple[str, Shares]] = []
    for full in range(min(len(ledger.places), _MOST_FULL)):
        served = [j for j, servers in enumerate(ledger.servers) if full in servers]
        name = ledger.places[full].replica_id
        even_parts = dict.fromkeys(served, 1.0 - whole / arrivals)
        found.append((name, _overflow(ledger, capacity, full, even_parts)))
        if len(served) > 1:
            for first in served[:_MOST_FULL]:
                part = min(1.0, (arrivals - whole) / max(ledger.arrivals[first], 1e-9))
                where = f"{name}, of {ledger.adapters[first]} first"
                found.append((where, _overflow(ledger, capacity, full, {first: part})))
    return found


def _overflow(
    ledger: Ledger, capacity: Sequence[float], full: int, parts: Mapping[int, float]
) -> Shares:
    """Return proportional shares but for a part of some adapters, which goes to ``full``."""
    shares = [dict(own) for own in proportional(ledger, capacity)]
    for j, part in parts.items():
        for i in ledger.servers[j]:
            shares[i][j] *= 1.0 - part
        shares[full][j] += part
    return shares
