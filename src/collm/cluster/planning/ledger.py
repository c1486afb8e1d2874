"""An allocation in the making: every quantity of the objective, kept up to date by small changes.

Written for speed: the allocator tries thousands of changes, each of which touches a replica or two.
Replicas and adapters are numbered; names are the allocator's business.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from collm.cluster.planning.allocation import Objective
from collm.cluster.planning.problem import AllocationProblem, Attainment, PairTerms, Training
from collm.cluster.planning.tabulated import Tabulated

Shares = Sequence[Mapping[int, float]]
"""For each replica, its share of the traffic of each adapter that it serves."""

MANY = 64
"""Replicas from which on the search is coarse: many of them make up for coarse steps."""
MIN_ATTAINMENT = 0.5
"""A replica that is expected to miss more than the rest is full: credit would only make it fuller.
"""


class Change(NamedTuple):
    """What one replica would do instead."""

    place: int
    shares: Mapping[int, float]
    credit: float
    division: tuple[float, ...]


@dataclass(slots=True)
class Place:
    """A replica: what it can do, and what it does now."""

    replica_id: str
    attainment: Attainment
    is_known: bool
    """Whether ``attainment`` says anything; otherwise nothing is moved here or away."""
    debt: float
    """Quality that each expected miss costs beside its own."""
    max_credit: float
    worth: dict[int, float]
    """By adapter that it serves, quality of all its requests per second, were they all here."""
    trained: tuple[int, ...]
    rates: tuple[float, ...]
    """For each trained one, effective tokens of a round of nothing else."""
    batches: tuple[int, ...]
    shares: Mapping[int, float] = field(default_factory=dict)
    credit: float = 0.0
    division: tuple[float, ...] = ()
    """How its training time is divided among the trained adapters."""
    load: float = 0.0
    quality: float = 0.0
    """Quality per second of what it is sent, were every objective met."""
    chance: float = 1.0
    free: float = 1.0
    time: float = 0.0
    """Share of wall time that it trains."""


class _Outcome(NamedTuple):
    load: float
    quality: float
    chance: float
    free: float
    time: float


class _Unknown:
    """Stands for a replica of which nothing is known."""

    def probability(self, arrivals_per_s: float, credit_share: float) -> float:
        return 1.0

    def free_share(self, arrivals_per_s: float) -> float:
        return 0.0


class Ledger:
    """The state of a search: ``total`` follows every change that is made."""

    def __init__(self, problem: AllocationProblem) -> None:
        """Number what the problem names; no traffic is shared out yet."""
        self.is_coarse = len(problem.replicas) >= MANY
        adapters = list(problem.adapters)
        numbers = {name: j for j, name in enumerate(adapters)}
        self.adapters = adapters
        self.round_s = problem.round_s
        self.arrivals = [terms.arrivals_per_s for terms in problem.adapters.values()]
        self.curves = [terms.curve for terms in problem.adapters.values()]
        self.weights = [
            problem.horizon_rounds
            * problem.round_s
            * max(terms.arrivals_per_s, terms.min_arrivals_per_s)
            for terms in problem.adapters.values()
        ]
        """Requests that profit from what an adapter learns in this round, met or not."""
        by_replica: dict[str, list[tuple[int, PairTerms]]] = {one: [] for one in problem.replicas}
        for (replica_id, adapter), pair in problem.pairs.items():
            by_replica[replica_id].append((numbers[adapter], pair))
        self.places = [self._place(problem, one, pairs) for one, pairs in by_replica.items()]
        self.servers: list[list[int]] = [[] for _ in adapters]
        """For each adapter, the places that serve it."""
        for i, place in enumerate(self.places):
            for j in place.worth:
                self.servers[j].append(i)
        self.tokens = [0.0] * len(adapters)
        self.reach = [0.0] * len(adapters)
        """Mean chance of an adapter's requests; 1 for one that nobody serves yet."""
        self.gains = [0.0] * len(adapters)
        self.total = 0.0

    def _place(
        self, problem: AllocationProblem, replica_id: str, pairs: Iterable[tuple[int, PairTerms]]
    ) -> Place:
        terms = problem.replicas[replica_id]
        attainment = terms.attainment or _Unknown()
        pairs = sorted(pairs, key=lambda one: one[0])
        trained: dict[int, tuple[float, int]] = {}
        for j, pair in pairs:
            if pair.training is not None:
                choices = problem.adapters[self.adapters[j]].batch_choices
                batch, tokens_per_s = best_batch(pair.training, choices)
                trained[j] = (tokens_per_s * problem.round_s, batch)
        return Place(
            replica_id=replica_id,
            attainment=Tabulated(attainment) if self.is_coarse else attainment,
            is_known=terms.attainment is not None,
            debt=problem.miss_price + terms.debt,
            max_credit=terms.max_credit_share if trained and terms.attainment else 0.0,
            worth={j: self.arrivals[j] * p.quality for j, p in pairs if p.quality is not None},
            trained=tuple(trained),
            rates=tuple(rate for rate, _ in trained.values()),
            batches=tuple(batch for _, batch in trained.values()),
            division=(1.0 / len(trained),) * len(trained) if trained else (),
        )

    def reset(self, shares: Shares) -> None:
        """Begin anew from these shares: no credit, training time divided evenly."""
        for place, own in zip(self.places, shares, strict=True):
            place.shares, place.credit = own, 0.0
            if place.trained:
                place.division = (1.0 / len(place.trained),) * len(place.trained)
        self._recount()

    def shares(self) -> Shares:
        """Return the present shares; they are never changed in place."""
        return [place.shares for place in self.places]

    def save(self) -> list[Change]:
        """Return the present state, for ``restore``."""
        return [
            Change(i, place.shares, place.credit, place.division)
            for i, place in enumerate(self.places)
        ]

    def restore(self, saved: Sequence[Change]) -> None:
        """Return to a saved state."""
        for change in saved:
            place = self.places[change.place]
            place.shares, place.credit, place.division = change[1:]
        self._recount()

    def objective(self) -> Objective:
        """Return the terms of the present state."""
        serving = sum(place.quality * place.chance for place in self.places)
        debt = sum(place.debt * place.load * (1.0 - place.chance) for place in self.places)
        learning = sum(
            weight * reach * gain
            for weight, reach, gain in zip(self.weights, self.reach, self.gains, strict=True)
        )
        return Objective(
            serving=serving * self.round_s, learning=learning, debt=debt * self.round_s
        )

    def price_of_tokens(self, j: int) -> float:
        """Return what one more effective token is worth to adapter ``j``."""
        curve = self.curves[j]
        if curve is None:
            return 0.0
        more = max(1e-3 * self.tokens[j], 1.0)
        slope = (curve.gain(self.tokens[j] + more) - self.gains[j]) / more
        return self.weights[j] * self.reach[j] * slope

    def try_credit(self, i: int, credit: float) -> float:
        """Return by how much the total would change with another credit."""
        place = self.places[i]
        return self.try_changes((Change(i, place.shares, credit, place.division),))

    def try_changes(self, changes: Iterable[Change]) -> float:
        """Return by how much the total would change; nothing does."""
        return self._weigh(changes)[0]

    def make(self, changes: Sequence[Change]) -> None:
        """Carry changes out."""
        gained, reach, tokens, gains, outcomes = self._weigh(changes)
        for j, more in reach.items():
            self.reach[j] += more
        for j, more in tokens.items():
            self.tokens[j] += more
        for j, gain in gains.items():
            self.gains[j] = gain
        for change, outcome in zip(changes, outcomes, strict=True):
            place = self.places[change.place]
            place.shares, place.credit, place.division = change[1:]
            place.load, place.quality, place.chance, place.free, place.time = outcome
        self.total += gained

    def outcome(self, i: int, load: float, credit: float) -> tuple[float, float, float]:
        """Return chance, free share and training time of a replica under such a load."""
        attainment = self.places[i].attainment
        free = attainment.free_share(load)
        # Credit takes its share of serving's time: free time is training's anyway.
        return attainment.probability(load, credit), free, free + credit * (1.0 - free)

    def _weigh(
        self, changes: Iterable[Change]
    ) -> tuple[float, dict[int, float], dict[int, float], dict[int, float], list[_Outcome]]:
        reach: dict[int, float] = {}
        tokens: dict[int, float] = {}
        outcomes = []
        gained = 0.0
        for change in changes:
            place = self.places[change.place]
            new = self._outcome(place, change)
            gained += new.quality * new.chance - place.quality * place.chance
            if place.debt:
                missed = new.load * (1.0 - new.chance) - place.load * (1.0 - place.chance)
                gained -= place.debt * missed
            _add_reach(reach, place, change, new.chance)
            for j, rate, old_part, part in zip(
                place.trained, place.rates, place.division, change.division, strict=True
            ):
                more = rate * (part * new.time - old_part * place.time)
                tokens[j] = tokens.get(j, 0.0) + more
            outcomes.append(new)
        gained *= self.round_s
        gains = {}
        for j, more in tokens.items():
            curve = self.curves[j]
            if curve is not None and more != 0.0:
                gains[j] = gain = curve.gain(max(self.tokens[j] + more, 0.0))
                if j not in reach:
                    gained += self.weights[j] * self.reach[j] * (gain - self.gains[j])
        for j, more in reach.items():
            old_reach, old_gain = self.reach[j], self.gains[j]
            new_gain = gains.get(j, old_gain)
            gained += self.weights[j] * ((old_reach + more) * new_gain - old_reach * old_gain)
        return gained, reach, tokens, gains, outcomes

    def _outcome(self, place: Place, change: Change) -> _Outcome:
        load, quality = place.load, place.quality
        if change.shares is not place.shares:
            load = quality = 0.0
            for j, share in change.shares.items():
                load += share * self.arrivals[j]
                quality += share * place.worth[j]
            free = place.attainment.free_share(load)
        else:
            free = place.free
        chance = place.attainment.probability(load, change.credit)
        # Credit takes its share of serving's time: free time is training's anyway.
        return _Outcome(load, quality, chance, free, free + change.credit * (1.0 - free))

    def _recount(self) -> None:
        """Compute everything from the shares, credits and divisions."""
        self.tokens = [0.0] * len(self.adapters)
        self.reach = [0.0 if servers else 1.0 for servers in self.servers]
        for place in self.places:
            load = quality = 0.0
            for j, share in place.shares.items():
                load += share * self.arrivals[j]
                quality += share * place.worth[j]
            place.load, place.quality = load, quality
            place.free = place.attainment.free_share(load)
            place.chance = place.attainment.probability(load, place.credit)
            place.time = place.free + place.credit * (1.0 - place.free)
            for j, share in place.shares.items():
                self.reach[j] += share * place.chance
            for j, rate, part in zip(place.trained, place.rates, place.division, strict=True):
                self.tokens[j] += rate * part * place.time
        self.gains = [
            0.0 if curve is None else curve.gain(tokens)
            for curve, tokens in zip(self.curves, self.tokens, strict=True)
        ]
        self.total = self.objective().total


def _add_reach(reach: dict[int, float], place: Place, change: Change, chance: float) -> None:
    """Add by how much a change moves the mean chance of each adapter's requests."""
    if change.shares is place.shares:
        more = chance - place.chance
        for j, share in place.shares.items():
            reach[j] = reach.get(j, 0.0) + share * more
        return
    for j, share in place.shares.items():
        reach[j] = reach.get(j, 0.0) - share * place.chance
    for j, share in change.shares.items():
        reach[j] = reach.get(j, 0.0) + share * chance


def best_batch(training: Training, choices: Sequence[int]) -> tuple[int, float]:
    """Return the tokens per step that make the most progress a second, and that progress.

    Nothing else depends on the size of a step, so this choice is exact by itself.
    """
    rates = [
        (training.discount * training.efficiency.e(b) * training.throughput.tokens_per_s(b), -b)
        for b in choices
    ]
    rate, negative = max(rates)
    return -negative, rate
