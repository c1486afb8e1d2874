"""What is learned of one adapter, from all replicas that serve or train it."""

from collections.abc import Mapping

from collm.cluster.planning.discount import Discount
from collm.cluster.planning.efficiency import Efficiency
from collm.cluster.planning.forecast import (
    BestForecaster,
    EmaForecaster,
    Forecast,
    SeasonalForecaster,
)
from collm.cluster.planning.noise_scale import NoiseScale
from collm.cluster.planning.quality_curve import QualityCurve
from collm.cluster.planning.windows import Window
from collm.types import AdapterTotals, Evaluation, LearningState, ReplicaSnapshot

_DAY_S = 86_400.0
_NUM_BINS = 96
"""A quarter of an hour each."""
_QUICK = 0.25
"""Of the half-life, that of a second rate of late: where many arrive, hardly more than the latest
window counts, and where few do, such a rate is mostly chance."""
_FIT_POINTS = 4
"""Points from which on the curve rests on what was measured, and can weigh a round."""
_BATCH_FACTORS = (1, 2, 4, 8)
"""Tokens per step to choose from, relative to what the operator set: not fewer, for which the
learning rate would be too high."""
FILLED_SHARE = 0.97
"""Of the most tokens that a micro-batch may have, those that it has: the next sample did not fit.
"""
_NOTHING = AdapterTotals()


class AdapterEstimates:
    """Arrivals, gradient noise, quality curve and members' discounts of one adapter.

    Tokens are added up as effective ones, each member's by its discount and by the size of its
    steps, so that the curve is that of training in one place. Replicas that learn by themselves
    improve only what they serve: there the curve is over the mean of their tokens.

    Args:
        half_life_s: Age at which arrivals count half.
    """

    def __init__(self, half_life_s: float) -> None:
        self._forecaster = BestForecaster(
            (
                EmaForecaster(half_life_s),
                EmaForecaster(_QUICK * half_life_s),
                SeasonalForecaster(_DAY_S, _NUM_BINS, level_half_life_s=2.0 * half_life_s),
            ),
            half_life_s=4.0 * half_life_s,
        )
        self._noise = NoiseScale()
        self._curve = QualityCurve()
        self._discount = Discount(())
        self._learners: Mapping[str, LearningState] = {}
        self._base_tokens = 0
        """Tokens of a step as the operator set them; 0 before anybody learned."""
        self._micro_batch_tokens = 1.0
        """Usual ones."""
        self._is_joint = False
        self._num_weighed = 0
        """Rounds that the discounts have learned from."""
        self._num_effective = 0.0
        """Effective tokens so far."""
        self._num_since: dict[str, float] = {}
        """Tokens of each member since the curve's latest point, by the size of its steps."""
        self._evaluations: dict[str, Evaluation] = {}
        """The latest of each replica that was seen."""
        self._point_at = 0.0
        """Effective tokens at the curve's latest point."""

    @property
    def curve(self) -> QualityCurve:
        """Loss by effective tokens."""
        return self._curve

    def forecast(self, start_s: float, end_s: float) -> Forecast:
        """Return the arrivals that are expected of all replicas in a window to come."""
        return self._forecaster.forecast(start_s, end_s)

    @property
    def efficiency(self) -> Efficiency:
        """What a token is worth by the size of its step."""
        return Efficiency(self._noise.phi_tokens, self._base_tokens, self._micro_batch_tokens)

    @property
    def batch_choices(self) -> tuple[int, ...]:
        """The tokens per step that replicas may be told; none if nobody learns."""
        if not self._learners:
            return ()
        return tuple(factor * self._base_tokens for factor in _BATCH_FACTORS)

    def discount(self, replica_id: str) -> float:
        """Return what a token of a replica is worth to all that profit from it."""
        if self._is_joint:
            return self._discount.share(replica_id)
        return 1.0 / max(1, len(self._learners))

    def meet(self, learners: Mapping[str, LearningState]) -> None:
        """Note who learns the adapter from now on."""
        if learners:
            self._base_tokens = min(one.tokens_per_step for one in learners.values())
            most_tokens = min(one.micro_batch_tokens for one in learners.values())
            self._micro_batch_tokens = FILLED_SHARE * most_tokens
            self._is_joint = any(one.is_joint for one in learners.values())
        if learners.keys() != self._learners.keys() and not self._num_weighed:
            self._discount = Discount(sorted(learners))
        self._learners = learners

    def learn_arrivals(
        self, windows: Mapping[str, AdapterTotals], start_s: float, end_s: float
    ) -> None:
        """Take in what was asked for in a window of time, replica by replica."""
        num_arrived = sum(done.num_arrived for done in windows.values())
        self._forecaster.observe(start_s, end_s, num_arrived)

    def learn_training(
        self, windows: Mapping[str, AdapterTotals], totals: Mapping[str, AdapterTotals]
    ) -> None:
        """Take in what was trained, and what those who learn it have measured.

        Args:
            windows: What each replica did for the adapter since the call before.
            totals: What each did since it started.
        """
        for done in windows.values():
            self._noise.add(done.gradient)
        if not self._learners:
            return
        efficiency = self.efficiency
        for replica_id, done in windows.items():
            if done.num_steps:
                worth = efficiency.e(done.num_trained_tokens / done.num_steps)
                tokens = worth * done.num_trained_tokens
                self._num_effective += self.discount(replica_id) * tokens
                self._num_since[replica_id] = self._num_since.get(replica_id, 0.0) + tokens
        found = {
            name: one.evaluation
            for name, one in self._learners.items()
            if one.evaluation is not None
        }
        if any(self._evaluations.get(name) != one for name, one in found.items()):
            self._evaluations = found
            self._add_point(totals)

    def _add_point(self, totals: Mapping[str, AdapterTotals]) -> None:
        """Give the curve the mean of what replicas measured, where training was then."""
        num_samples = sum(one.num_samples for one in self._evaluations.values())
        loss = sum(one.loss * one.num_samples for one in self._evaluations.values()) / num_samples
        behind = sum(
            self.discount(name)
            * max(0, totals.get(name, _NOTHING).num_trained_tokens - one.num_tokens)
            for name, one in self._evaluations.items()
        )
        if self._is_joint and self._curve.num_points >= _FIT_POINTS:
            self._weigh(loss)
        self._point_at = max(self._point_at, self._num_effective - behind)
        self._curve.add(self._point_at, loss)
        self._num_since.clear()

    def _weigh(self, loss: float) -> None:
        """Learn from a round what its members' tokens were worth."""
        num_tokens = {name: round(tokens) for name, tokens in self._num_since.items()}
        if len(num_tokens) > 1:
            self._discount.observe(num_tokens, self._curve.tokens_to(loss))
            self._num_weighed += 1


def learners_of(adapter: str, live: Mapping[str, ReplicaSnapshot]) -> dict[str, LearningState]:
    """Return how each replica learns the adapter that does."""
    return {name: one.learning[adapter] for name, one in live.items() if adapter in one.learning}


def done_for(adapter: str, windows: Mapping[str, Window]) -> dict[str, AdapterTotals]:
    """Return what was done for the adapter in each window."""
    return {
        name: window.done.adapters[adapter]
        for name, window in windows.items()
        if adapter in window.done.adapters
    }
