"""Second half of the search: moves of traffic, each kept if the objective rises."""

from collections.abc import Callable, Mapping, Sequence

from collm.cluster.planning.ledger import Change, Ledger, Shares

_PARTS = (1.0, 0.5, 0.25, 0.1, 0.03)
_NUM_ENDS_FINE = 8
_NUM_ENDS_COARSE = 3
"""Replicas that traffic is tried to be moved from, and to, in each pass of an adapter."""
_LITTLE = 1e-9
_COARSE = tuple(k / 12 for k in range(1, 12))
"""Parts of the replicas that are tried to be left without traffic."""
_FINEST = 100
"""Of so many replicas, one more or less without traffic is tried; of more, as many at once."""


def externality(ledger: Ledger, i: int) -> float:
    """Return what one more request per second at a replica costs what else is there, a round.

    Counted are the chances of the other requests, the misses that are owed for, and the training
    time that serving it takes.
    """
    place = ledger.places[i]
    step = max(1e-2 * place.load, 1e-3)
    chance, free, time = ledger.outcome(i, place.load + step, place.credit)
    lost_chance, lost_time = place.chance - chance, place.time - time
    cost = place.quality * lost_chance * ledger.round_s
    if place.debt:
        missed = (place.load + step) * (1.0 - chance) - place.load * (1.0 - place.chance)
        cost += place.debt * missed * ledger.round_s
    for j, share in place.shares.items():
        cost += ledger.weights[j] * ledger.gains[j] * share * lost_chance
    for j, rate, part in zip(place.trained, place.rates, place.division, strict=True):
        cost += ledger.price_of_tokens(j) * rate * part * lost_time
    return cost / step


def empty_replicas(ledger: Ledger, capacity: Sequence[float]) -> None:
    """Leave as many replicas without traffic as pays: their time is training's then.

    First those whose training time is worth the most for the capacity that is lost; where no other
    replica serves an adapter, its last one stays. The rest shares the traffic in proportion.
    """
    order = _by_worth_of_time(ledger, capacity)
    saved, best = ledger.save(), ledger.total
    tried: dict[int, tuple[float, Shares]] = {}

    def total_without(count: int) -> float:
        if count not in tried:
            shares = _without(ledger, capacity, order[:count])
            _set_shares(ledger, shares)
            tried[count] = (ledger.total, shares)
        return tried[count][0]

    counts = sorted({max(1, round(part * len(order))) for part in _COARSE} | {len(order) - 1, 0})
    counts = [count for count in counts if 0 <= count < len(order)]
    if not counts:
        return
    chosen = max(counts, key=total_without)
    at = counts.index(chosen)
    low = counts[max(at - 1, 0)]
    high = counts[min(at + 1, len(counts) - 1)]
    chosen = _climb(total_without, low, chosen, high, max(2, len(order) // _FINEST))
    if tried[chosen][0] > best + _LITTLE:
        _set_shares(ledger, tried[chosen][1])
    else:
        ledger.restore(saved)


def _climb(value: Callable[[int], float], low: int, middle: int, high: int, enough: int) -> int:
    """Return where ``value`` is highest from ``low`` to ``high``, as far as halving finds it.

    It ends when the two are ``enough`` apart, 2 or more.
    """
    while high - low > enough:
        left, right = (low + middle) // 2, (middle + high + 1) // 2
        best = max((middle, left, right), key=value)
        if best == middle:
            if (left, right) == (low, high):
                break
            low, high = left, right
        elif best == left:
            middle, high = left, middle
        else:
            low, middle = middle, right
    return middle


def _by_worth_of_time(ledger: Ledger, capacity: Sequence[float]) -> list[int]:
    prices = [ledger.price_of_tokens(j) for j in range(len(ledger.adapters))]

    def worth(i: int) -> float:
        place = ledger.places[i]
        second = max(
            (rate * prices[j] for j, rate in zip(place.trained, place.rates, strict=True)),
            default=0.0,
        )
        return second / max(capacity[i], _LITTLE)

    movable = [i for i, place in enumerate(ledger.places) if place.is_known and place.worth]
    return sorted(movable, key=lambda i: (-worth(i), i))


def _without(ledger: Ledger, capacity: Sequence[float], emptied: Sequence[int]) -> Shares:
    gone = set(emptied)
    wanted: list[dict[int, float]] = [{} for _ in ledger.places]
    for j, servers in enumerate(ledger.servers):
        fixed = [i for i in servers if not ledger.places[i].is_known]
        moved = [i for i in servers if ledger.places[i].is_known]
        kept = [i for i in moved if i not in gone] or moved[-1:]
        rest = 1.0
        for i in fixed:
            wanted[i][j] = ledger.places[i].shares[j]
            rest -= wanted[i][j]
        whole = sum(capacity[i] for i in kept)
        for i in moved:
            wanted[i][j] = rest * capacity[i] / whole if i in kept else 0.0
    return wanted


def _set_shares(ledger: Ledger, shares: Shares) -> None:
    ledger.restore(
        [
            Change(i, own, place.credit, place.division)
            for i, (place, own) in enumerate(zip(ledger.places, shares, strict=True))
        ]
    )


def move_traffic(ledger: Ledger, passes: int, *, is_fine: bool) -> None:
    """Move parts of an adapter's traffic from where it is worth the least to where it is most."""
    num_ends = _NUM_ENDS_FINE if is_fine else _NUM_ENDS_COARSE
    for _ in range(passes):
        costs = [externality(ledger, i) for i in range(len(ledger.places))]
        has_moved = False
        for j in range(len(ledger.adapters)):
            has_moved |= _move_adapter(ledger, j, costs, num_ends)
        if is_fine:
            has_moved |= _move_everything(ledger)
        if not has_moved:
            return


def _move_adapter(ledger: Ledger, j: int, costs: list[float], num_ends: int) -> bool:
    ends = [i for i in ledger.servers[j] if ledger.places[i].is_known]
    if len(ends) < 2:
        return False
    arrivals, gained = ledger.arrivals[j], ledger.weights[j] * ledger.gains[j]

    def value(i: int) -> float:
        place = ledger.places[i]
        served = place.worth[j] * ledger.round_s + gained
        return served * place.chance - arrivals * costs[i]

    ranked = sorted(ends, key=lambda i: (value(i), i))
    sources = [i for i in ranked if ledger.places[i].shares[j] > _LITTLE][:num_ends]
    targets = ranked[: -num_ends - 1 : -1]
    has_moved = False
    for source in sources:
        for target in targets:
            if source != target and _move(ledger, j, source, target):
                has_moved = True
                costs[source], costs[target] = (
                    externality(ledger, source),
                    externality(ledger, target),
                )
    return has_moved


def _move(ledger: Ledger, j: int, source: int, target: int) -> bool:
    """Move the part that gains the most, if any does."""
    share = ledger.places[source].shares[j]
    best_gain, best = _LITTLE, None
    for part in _PARTS:
        changes = _moved(ledger, source, target, {j: part * share})
        gain = ledger.try_changes(changes)
        if gain > best_gain:
            best_gain, best = gain, changes
    if best is None:
        return False
    ledger.make(best)
    return True


def _moved(
    ledger: Ledger, source: int, target: int, amounts: Mapping[int, float]
) -> tuple[Change, Change]:
    giver, taker = ledger.places[source], ledger.places[target]
    given, taken = dict(giver.shares), dict(taker.shares)
    for j, amount in amounts.items():
        given[j] = given[j] - amount if amount < given[j] else 0.0
        taken[j] += amount
    return (
        Change(source, given, giver.credit, giver.division),
        Change(target, taken, taker.credit, taker.division),
    )


def _move_everything(ledger: Ledger) -> bool:
    """Try to swap what two replicas have, and to move all of one to another."""
    has_moved = False
    for source in range(len(ledger.places)):
        for target in range(len(ledger.places)):
            has_moved |= source != target and _merge(ledger, source, target)
    return has_moved


def _merge(ledger: Ledger, source: int, target: int) -> bool:
    giver, taker = ledger.places[source], ledger.places[target]
    common = [j for j in giver.worth if j in taker.worth]
    if not (giver.is_known and taker.is_known and common):
        return False
    given, taken = dict(giver.shares), dict(taker.shares)
    swapped_given, swapped_taken = dict(given), dict(taken)
    for j in common:
        swapped_given[j], swapped_taken[j] = taken[j], given[j]
        taken[j] += given[j]
        given[j] = 0.0
    for left, right in ((given, taken), (swapped_given, swapped_taken)):
        for credits in ((giver.credit, taker.credit), (taker.credit, giver.credit)):
            changes = (
                Change(source, left, min(credits[0], giver.max_credit), giver.division),
                Change(target, right, min(credits[1], taker.max_credit), taker.division),
            )
            if ledger.try_changes(changes) > _LITTLE:
                ledger.make(changes)
                return True
    return False
