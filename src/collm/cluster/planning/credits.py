"""First half of the search: credit and training time by what they are worth, traffic given."""

from heapq import heapify, heappop, heapreplace

from collm.cluster.planning.ledger import MIN_ATTAINMENT, Change, Ledger

FINE_LEVELS = 8
COARSE_LEVELS = 3
"""Steps from no credit to the most."""
_SHIFTS = (1.0, 0.5, 0.25, 0.1)
_LEAST_PART = 0.1
"""Of an even share of the training time: whoever asked for a job is owed progress."""
_NOTHING = 1e-12


def grant_credits(ledger: Ledger) -> None:
    """Give credit where the last step of it gains the most, until none gains anything.

    Gains fall as an adapter gets more tokens, so that a gain computed earlier is a bound: only the
    best one is computed again, and is taken if it still is the best.
    """
    levels = _num_levels(ledger)
    heap = [
        found
        for i, place in enumerate(ledger.places)
        if place.max_credit > 0.0 and (found := _best_raise(ledger, i, levels)) is not None
    ]
    heapify(heap)
    while heap:
        _, i, credit = heap[0]
        found = _best_raise(ledger, i, levels)
        if found is None:
            heappop(heap)
            continue
        heapreplace(heap, found)
        if heap[0] == found:
            place = ledger.places[i]
            ledger.make((Change(i, place.shares, found[2], place.division),))
            following = _best_raise(ledger, i, levels)
            if following is None:
                heappop(heap)
            else:
                heapreplace(heap, following)


def _best_raise(ledger: Ledger, i: int, levels: int) -> tuple[float, int, float] | None:
    """Return (minus the gain per credit, place, credit) of the next step, or of all at once.

    The chance falls off a cliff: behind it, more credit may gain again.
    """
    place = ledger.places[i]
    level = round(place.credit / place.max_credit * levels)
    if level == levels:
        return None
    best = None
    # Computed alike each time, so that a table of chances by credit has few of them.
    for credit in dict.fromkeys((place.max_credit * (level + 1) / levels, place.max_credit)):
        more = credit - place.credit
        if more <= _NOTHING:
            continue
        if place.attainment.probability(place.load, credit) < MIN_ATTAINMENT:
            break  # more credit would make it no better
        gain = ledger.try_credit(i, credit) / more
        if gain > _NOTHING and (best is None or -gain < best[0]):
            best = (-gain, i, credit)
    return best


def _num_levels(ledger: Ledger) -> int:
    return COARSE_LEVELS if ledger.is_coarse else FINE_LEVELS


def take_back_credits(ledger: Ledger) -> None:
    """Lower credits that traffic, moved since, has made too dear."""
    levels = _num_levels(ledger)
    for i, place in enumerate(ledger.places):
        if place.credit > 0.0 and place.chance < MIN_ATTAINMENT:
            ledger.make((Change(i, place.shares, 0.0, place.division),))
        elif place.credit > 0.0:
            level = round(place.credit / place.max_credit * levels)
            for credit in (0.0, place.max_credit * (level - 1) / levels):
                if ledger.try_credit(i, credit) > _NOTHING:
                    ledger.make((Change(i, place.shares, credit, place.division),))
                    break


def divide_time(ledger: Ledger, sweeps: int) -> None:
    """Divide each replica's training time among its adapters by what they gain.

    Each adapter keeps a little, whatever it gains.
    """
    for _ in range(sweeps):
        has_changed = False
        for i, place in enumerate(ledger.places):
            if len(place.trained) > 1 and place.time > 0.0:
                has_changed |= _shift(ledger, i)
        if not has_changed:
            return


def _shift(ledger: Ledger, i: int) -> bool:
    """Move training time from the adapter of the cheapest tokens to that of the dearest."""
    place = ledger.places[i]
    least = _LEAST_PART / len(place.trained)
    values = [
        rate * ledger.price_of_tokens(j) for j, rate in zip(place.trained, place.rates, strict=True)
    ]
    order = sorted(range(len(values)), key=values.__getitem__)
    target = order[-1]
    for source in order[:-1]:
        movable = place.division[source] - least
        if movable <= _NOTHING or values[source] >= values[target]:
            continue
        for part in _SHIFTS:
            division = list(place.division)
            division[source] -= part * movable
            division[target] += part * movable
            change = Change(i, place.shares, place.credit, tuple(division))
            if ledger.try_changes((change,)) > _NOTHING:
                ledger.make((change,))
                return True
    return False
