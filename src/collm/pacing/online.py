"""A time that is learned while it is used: non-negative linear fit plus an upper bound."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from collm.pacing.least_squares import solve_non_negative

_DECAY = 0.995
"""Weight of an observation against its successor: about the latest 200 count."""
_FIRST_FIT = 4
"""Observations before the prior is left: fewer, and one hiccup could be the whole fit."""
_REFIT_EVERY = 8
_DAMPING = 1e-3
"""Pull of each refit towards the previous one, as a share of what the data say."""
_MIN_RATIO = 0.1
"""An observation counts as at least this share of its prediction: see ``OnlineCost``."""
_MIN_PREDICTION_S = 1e-6
_WINDOW = 256
"""Observations that the upper bound is taken from."""
_LEVEL_GAIN = 0.01
"""How far one observation moves the level at which the quantile is taken: a miss by almost this,
one that was covered back by a twentieth of it at a quantile of 95 %."""
_MAX_RAISE = 0.5
"""Most that the level rises, as a share of what the quantile leaves: hiccups rarer than the rest
must not become the bound."""
_PRIOR_EXCESSES = tuple(-0.05 + 0.3 * i / 39 for i in range(40))
"""Excesses assumed before any are seen, so that two early hiccups do not set the bound."""
_UNSEEN = 1e-200


@dataclass(frozen=True, slots=True)
class Calibration:
    """How often the upper bound held, each bound predicted before its observation."""

    num_observed: int
    covered_share: float
    """Share of observations at or under their bound; 1 before any."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that was ever observed, added up."""

    num: int
    features: tuple[float, ...]
    seconds: float

    def since(self, earlier: "Observed") -> "Observed":
        """Return what was observed after ``earlier``."""
        features = zip(self.features, earlier.features, strict=True)
        return Observed(
            self.num - earlier.num,
            tuple(after - before for after, before in features),
            self.seconds - earlier.seconds,
        )


class OnlineCost:
    """Seconds as a non-negative linear function of a few features, fitted as they are observed.

    The fit minimises the *relative* error, the sum of ``(prediction / seconds - 1)²`` with
    exponentially fading weights. An observation that is far too slow (a neighbour on a shared
    machine) then adds a residual of at most 1 and hardly moves the fit, while small and large loads
    count alike. One that is far too fast would weigh too much and is raised to a tenth of its
    prediction. A feature that no longer varies keeps its coefficient.

    The upper bound exceeds the prediction by a share of it, and by the same share of what is
    typically predicted: noise that a short time has as well as a long one. Both are one number, a
    quantile of the latest excesses, (seconds - prediction) / (prediction + typical prediction), so
    the bound is linear in the features as well, and follows noise and drift. A quantile of the
    ratios to the prediction would give long times the margin of the short ones, most of which are
    of one kind. It follows them with a delay, in which more than the planned share is missed; so
    the level of the quantile rises with each miss and sinks with each hit, at rates that balance at
    ``quantile``.

    Source of the moving level: Gibbs and Candès, Adaptive Conformal Inference Under Distribution
    Shift, arXiv 2106.00170, equation 2.

    Args:
        prior: Coefficient of each feature until there are data, and afterwards wherever the data
            cannot tell features apart. Better too slow than too fast.
        quantile: Share of observations that the bound should cover, below 1.
    """

    def __init__(self, prior: Sequence[float], quantile: float) -> None:
        n = len(prior)
        self._coefficients = tuple(prior)
        self._quantile = quantile
        self._level = quantile
        self._gram = [[0.0] * n for _ in range(n)]
        self._moment = [0.0] * n
        self._weight = 1.0
        self._ratios: deque[float] = deque(maxlen=_WINDOW)
        self._excesses = deque(_PRIOR_EXCESSES, maxlen=_WINDOW)
        self._mean_prediction_s = 0.0
        self._excess, self._typical_s = self._excess_at_quantile(), 0.0
        self._num_observed = 0
        self._num_covered = 0
        self._feature_sums = [0.0] * n
        self._seconds = 0.0

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Seconds per unit of each feature, none negative."""
        return self._coefficients

    @property
    def ratios(self) -> tuple[float, ...]:
        """The latest ratios of an observed time to the time predicted beforehand, oldest first."""
        return tuple(self._ratios)

    @property
    def observed(self) -> Observed:
        """Sums over all observations so far."""
        return Observed(self._num_observed, tuple(self._feature_sums), self._seconds)

    @property
    def calibration(self) -> Calibration:
        """Score of the bounds so far."""
        share = self._num_covered / self._num_observed if self._num_observed else 1.0
        return Calibration(self._num_observed, share)

    def predict_s(self, features: Sequence[float]) -> float:
        """Return the expected seconds, more than zero."""
        seconds = sum(c * x for c, x in zip(self._coefficients, features, strict=True))
        return max(seconds, _MIN_PREDICTION_S)

    def upper_s(self, features: Sequence[float]) -> float:
        """Return the seconds not exceeded at the upper quantile."""
        return self._bound_s(self.predict_s(features))

    def predicted_within_s(self, limit_s: float) -> float:
        """Return the prediction whose upper bound is ``limit_s``; below zero if there is none."""
        return (limit_s - self._excess * self._typical_s) / (1.0 + self._excess)

    def observe(self, features: Sequence[float], seconds: float) -> None:
        """Score the standing bound against a measured time, then learn from it."""
        predicted = self.predict_s(features)
        self._num_observed += 1
        is_covered = seconds <= self._bound_s(predicted)
        self._num_covered += is_covered
        self._seconds += seconds
        for index, value in enumerate(features):
            self._feature_sums[index] += value
        if self._num_observed > _FIRST_FIT:  # before, it would be compared with the prior
            self._note(seconds, predicted, is_covered=is_covered)
        self._add(features, max(seconds, _MIN_RATIO * predicted))
        if self._num_observed == _FIRST_FIT or self._num_observed % _REFIT_EVERY == 0:
            self._refit()

    def _bound_s(self, predicted_s: float) -> float:
        return predicted_s + self._excess * (predicted_s + self._typical_s)

    def _note(self, seconds: float, predicted_s: float, *, is_covered: bool) -> None:
        """Let the bound follow a time and what was predicted of it."""
        if not self._ratios:
            self._mean_prediction_s = self._typical_s = predicted_s
        self._mean_prediction_s += (1.0 - _DECAY) * (predicted_s - self._mean_prediction_s)
        self._ratios.append(seconds / predicted_s)
        self._excesses.append((seconds - predicted_s) / (predicted_s + self._typical_s))
        moved = self._level + _LEVEL_GAIN * (self._quantile - is_covered)
        highest = self._quantile + _MAX_RAISE * (1.0 - self._quantile)
        self._level = min(max(moved, self._quantile), highest)

    def _add(self, features: Sequence[float], seconds: float) -> None:
        """Add one row ``features / seconds`` with target 1 to the normal equations."""
        row = [x / seconds for x in features]
        # Weights that grow fade the past without touching it; ``_refit`` scales them back.
        self._weight /= _DECAY
        for i, x in enumerate(row):
            if x == 0.0:
                continue
            weighted = self._weight * x
            self._moment[i] += weighted
            gram_row = self._gram[i]
            for j, y in enumerate(row):
                gram_row[j] += weighted * y

    def _refit(self) -> None:
        n = len(self._moment)
        self._gram = [[value / self._weight for value in row] for row in self._gram]
        self._moment = [value / self._weight for value in self._moment]
        self._weight = 1.0
        damped = [row.copy() for row in self._gram]
        target = self._moment.copy()
        for i, previous in enumerate(self._coefficients):
            if damped[i][i] < _UNSEEN:
                damped[i] = [0.0] * n
                for row in damped:
                    row[i] = 0.0
                damped[i][i], target[i] = 1.0, previous
            else:
                pull = _DAMPING * damped[i][i]
                damped[i][i] += pull
                target[i] += pull * previous
        self._coefficients = tuple(solve_non_negative(damped, target))
        self._excess, self._typical_s = self._excess_at_quantile(), self._mean_prediction_s

    def _excess_at_quantile(self) -> float:
        ordered = sorted(self._excesses)
        return max(ordered[int(self._level * len(ordered))], 0.0)
