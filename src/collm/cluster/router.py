"""Choose the replica for a request: chance to meet the objectives, quality, price of the work."""

import math
from collections.abc import Callable, Collection, Mapping
from random import Random

from collm.cluster.affinity import Cached
from collm.cluster.prediction import NOT_SERVED, SPREAD, Forecast, Served, predict
from collm.cluster.routes import Choice, RouteRequest, Turned, TurnedReason
from collm.cluster.routing_config import RouterConfig
from collm.cluster.sent import Sent
from collm.cluster.table import ANY, Pool, ReplicaTable
from collm.types import VersionId

MAX_CANDIDATES = 8

_NUM_BEST = 2
"""Candidates for their quality alone."""
_NUM_DRAWN = 2
"""Candidates by lot; a second one removes most of the imbalance that chance makes, and further ones
ever less (Mitzenmacher, IEEE TPDS 12, 2001)."""
_MAX_DRAWS = 16
"""Some draws hit candidates again."""
_TIE_SHARE = 0.02
"""Values this close, as a share of the quality at stake, are equal: predictions are no finer."""
_STAY_SHARE = 0.05
"""The same for a conversation's home, whose cache is lost by moving."""
_HOME_SHARE = 0.5
"""A replica that has this share of a prompt is the conversation's home."""
_NOISE_ERRORS = 2.0
"""Qualities differ when they are this many standard errors of their difference apart."""
_MAX_COST = 0.25
"""Of what is at stake, the most that a replica can lose to a cheaper one by its price: prices hold
for a little more load, and an objective that would be missed is not theirs to decide."""
_SHARE_WEIGHT = 0.05
"""Of what is at stake, what a replica that is far above its share of the traffic must be better by:
it outweighs ties and a conversation's home, and not an objective that would be missed."""
_LOST = 2.0
"""A replica is given up when all are late and a request would wait for others there for so many
times the TTFT objective: shorter bursts are shared, and soon over."""


class Router:
    """The fast loop: a choice is a function of the table, the front's book, prices and a seed.

    Args:
        config: What the operator set.
        random: Draws candidates.
    """

    def __init__(self, config: RouterConfig, random: Random) -> None:
        self._config = config
        self._random = random
        self._caught_up: Callable[[str], Collection[str] | None] = _everybody
        self._prices: Mapping[str, float] = {}
        self._traffic: Mapping[str, Mapping[str, float]] = {}

    def spare(self, caught_up: Callable[[str], Collection[str] | None]) -> None:
        """Send nothing to a replica that still catches up with others, while these can answer.

        Args:
            caught_up: Returns who need not, of the adapter that is asked for; ``None`` for
                everybody. Called for every request.
        """
        self._caught_up = caught_up

    def follow(
        self, prices: Mapping[str, float], traffic: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Follow a new allocation.

        Args:
            prices: As the property of this name, for adapters without shares.
            traffic: By adapter, the share of its requests that each replica should get; a gentle
                pull towards it. Adapters that are missing follow prices.
        """
        self._prices = dict(prices)
        self._traffic = dict(traffic)

    @property
    def prices(self) -> Mapping[str, float]:
        """Quality that a second of each replica's work must be worth; 0 where missing."""
        return self._prices

    def choose(
        self,
        request: RouteRequest,
        snapshots: ReplicaTable,
        sent: Sent,
        now_s: float,
        exclude: Collection[str] = (),
    ) -> Choice | Turned:
        """Return where a request goes; draws, but changes nothing else.

        A name that no replica serves goes to any of them, whose 404 lists what exists: a replica
        may also have begun to serve it since its snapshot.

        Args:
            request: What is asked for.
            snapshots: Every live replica.
            sent: What the front sent so far.
            now_s: The present, on the clock of ``taken_at_s``.
            exclude: Replicas that the request has failed at.
        """
        pool = snapshots.pool(request.model) or snapshots.pool(ANY)
        cached = sent.cached(request)
        ids = [] if pool is None else self._candidate_ids(request, pool, sent, cached, exclude)
        if not ids:
            return Turned(1.0, TurnedReason.NO_REPLICA)
        caught_up = self._caught_up(request.model)
        if caught_up is not None:  # an older version is better than none
            ids = [one for one in ids if one in caught_up] or ids
        forecasts = self._forecasts(request, ids, snapshots, sent, cached, now_s)
        num_output = max(request.num_output_tokens_guess, 1)
        if all(one.overdue_s(num_output) > 0.0 for one in forecasts):
            least = min(forecasts, key=lambda one: (one.overdue_s(num_output), one.ttft_s))
            if self._config.rejects_late:
                return Turned(max(least.overdue_s(num_output), 1.0), TurnedReason.LATE)
            return _choice(_given_up(forecasts) or least)
        home = sent.session_home(request)
        return _choice(self._most_valuable(forecasts, home, request.model, sent))

    def _candidate_ids(
        self,
        request: RouteRequest,
        pool: Pool,
        sent: Sent,
        cached: Cached,
        exclude: Collection[str],
    ) -> list[str]:
        """Return all replicas of a small pool, else those that stand out and some by lot."""
        random, ids = self._random.random, pool.ids
        num_ids = len(ids)
        start = int(random() * num_ids)
        if num_ids <= MAX_CANDIDATES:
            rotated = (*ids[start:], *ids[:start])  # so that no replica wins all exact ties
            return [one for one in rotated if one not in exclude]
        chosen: dict[str, None] = {}
        session_home = sent.session_home(request)
        # Who has most of the prompt is known to have its adapter at hand.
        known = cached.holders or (sent.latest(request.model),)
        for one in (session_home, *known, *pool.best(_NUM_BEST, random)):
            if one is not None and one in pool and one not in exclude:
                chosen[one] = None
        most = min(len(chosen) + _NUM_DRAWN, MAX_CANDIDATES)
        for _ in range(_MAX_DRAWS):
            if len(chosen) == most:
                break
            drawn = ids[int(random() * num_ids)]
            if drawn not in exclude:
                chosen[drawn] = None
        return list(chosen)

    def _forecasts(
        self,
        request: RouteRequest,
        ids: list[str],
        snapshots: ReplicaTable,
        sent: Sent,
        cached: Cached,
        now_s: float,
    ) -> list[Forecast]:
        """Return what is to be expected of each of these replicas."""
        trust_s = self._config.trust_s
        # A label names the version itself: its quality is the same wherever it is served.
        adapter, at, _ = request.model.partition("@")
        by_label = Served(VersionId(request.model), None, 0.0) if at else None
        num_bytes, num_output = request.num_prompt_bytes, max(request.num_output_tokens_guess, 1)
        standing_of, load_of = snapshots.standing, sent.load
        forecasts = []
        for replica_id in ids:
            standing = standing_of(replica_id)
            served = by_label or standing.adapters.get(adapter, NOT_SERVED)
            taken_at_s = standing.taken_at_s
            # What the template adds is the same for all, and cached since the first of them.
            num_prefill = int(num_bytes * standing.tokens_per_byte) + 1
            num_prompt = num_prefill + standing.num_template_tokens
            if replica_id in cached.holders and cached.holders[replica_id] == served.version:
                num_prefill -= int(cached.num_bytes * standing.tokens_per_byte)
            forecast = predict(
                standing,
                load_of(replica_id, taken_at_s, now_s),
                served,
                num_prompt,
                num_prefill,
                num_output,
                now_s - taken_at_s - trust_s,
                trust_s,
            )
            forecasts.append(forecast)
        return forecasts

    def _most_valuable(
        self, forecasts: list[Forecast], home: str | None, model: str, sent: Sent
    ) -> Forecast:
        """Return the best value; among equals a home, then the one of the least burden."""
        qualities = _qualities(forecasts)
        values = [one.chance * quality for one, quality in zip(forecasts, qualities, strict=True)]
        at_stake = max(qualities)
        if self._prices or self._traffic:
            self._follow_allocation(values, forecasts, at_stake, model.partition("@")[0], sent)
        best = max(values)
        least_home, least_away = best - _STAY_SHARE * at_stake, best - _TIE_SHARE * at_stake
        at_home, away = [], []
        for one, value in zip(forecasts, values, strict=True):
            if value >= least_home:
                if _is_home(one, home):
                    at_home.append(one)
                elif value >= least_away:
                    away.append(one)
        return self._least_burdened(at_home or away)

    def _least_burdened(self, equals: list[Forecast]) -> Forecast:
        """Return the one of the shortest time; where times cannot be told apart, the emptiest.

        Of two idle replicas one always looks a little faster, by its fitted cost or by how its last
        request went. It would get nearly all that comes, also while the other has nothing to do.
        """
        if len(equals) == 1:
            return equals[0]
        burdens = [_burden_s(one) for one in equals]
        longest_s, lot = (1.0 + SPREAD) * min(burdens), self._random.random
        alike = [
            (one.num_sequences, lot(), one)
            for one, burden_s in zip(equals, burdens, strict=True)
            if burden_s <= longest_s
        ]
        return min(alike)[2]

    def _follow_allocation(
        self,
        values: list[float],
        forecasts: list[Forecast],
        at_stake: float,
        adapter: str,
        sent: Sent,
    ) -> None:
        """Pull towards the traffic's shares; without any, take off what work costs.

        Not both: a price is that of one more request where the plan has been carried out. A replica
        that the plan leaves to training is cheap by it, until the requests that this draws have
        taken the very time that it was left.
        """
        ids = [one.standing.snapshot.replica_id for one in forecasts]
        shares = self._traffic.get(adapter)
        if shares is not None:
            weight = _SHARE_WEIGHT * at_stake
            for index, excess in enumerate(sent.excesses(adapter, ids, shares)):
                values[index] -= weight * excess
            return
        price_of = self._prices.get
        costs = [price_of(name, 0.0) * one.work_s for name, one in zip(ids, forecasts, strict=True)]
        cheapest, most = min(costs), _MAX_COST * at_stake
        for index, cost in enumerate(costs):
            values[index] -= min(cost - cheapest, most)


def _everybody(_: str) -> None:
    return None


def _qualities(forecasts: list[Forecast]) -> list[float]:
    """Return each replica's quality, the best one's for those not surely worse.

    Replicas that serve the same version answer alike, whatever their own held-out samples, which
    differ, say of it: it has the best quality that any of them measured.
    """
    measured: dict[VersionId | None, tuple[float, float]] = {}
    for one in forecasts:
        version, quality, noise = one.served
        if quality is not None and (version not in measured or quality > measured[version][0]):
            measured[version] = quality, noise
    if not measured:
        return [1.0] * len(forecasts)
    best, best_noise = max(measured.values())
    qualities = []
    for one in forecasts:
        quality, noise = measured.get(one.served.version, (best, 0.0))
        is_worse = best - quality > _NOISE_ERRORS * math.hypot(noise, best_noise)
        qualities.append(quality if is_worse else best)
    return qualities


def _given_up(forecasts: list[Forecast]) -> Forecast | None:
    """Return the replica that takes what is too much for all, if one is late for whatever comes.

    Sent to the least late, requests that nobody can answer in time would make all replicas equally
    late, and every request would miss. So they go where even the shortest prompt would be late,
    and the others are soon in time again. Of several such replicas it is the latest one: the next
    one is the first to come back.
    """
    lost = [one for one in forecasts if one.queue_s > _LOST * one.standing.ttft_s]
    return max(lost, key=lambda one: one.queue_s, default=None)


def _is_home(forecast: Forecast, session_home: str | None) -> bool:
    num_text = forecast.num_prompt - forecast.standing.num_template_tokens
    if forecast.num_prefill <= (1.0 - _HOME_SHARE) * num_text:
        return True
    return session_home is not None and forecast.standing.snapshot.replica_id == session_home


def _burden_s(forecast: Forecast) -> float:
    """Return the time to the first token and for computing the prompt, by which equals are told.

    What a cache saves counts twice, for this request and for the replica's others. That answers
    are cheaper where others run is left to prices.
    """
    return forecast.ttft_s + forecast.standing.prefill_s * forecast.num_prefill


def _choice(forecast: Forecast) -> Choice:
    return Choice(
        replica_id=forecast.standing.snapshot.replica_id,
        ttft_s=forecast.ttft_s,
        tpot_s=forecast.tpot_s,
        chance=forecast.chance,
        claimed_ttft_s=forecast.claimed_ttft_s,
        num_prompt_tokens=forecast.num_prompt,
        num_prefill_tokens=forecast.num_prefill,
        version=forecast.served.version,
    )
