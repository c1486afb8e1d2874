"""How a replica differs from the formula of its chances, by what was seen of it."""

import math
from dataclasses import dataclass, replace

from collm.cluster.planning.attainment import AttainmentModel, Calibration

_LOAD_FACTORS = tuple(2.0 ** (step / 6.0) for step in range(-9, 10))
_LAPSES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
_FACTOR_SPREAD = 0.4
"""Prior standard deviation of the load factor's logarithm."""
_LAPSE_COST = 10.0
"""Prior log-odds lost per unit of lapse."""
_EVIDENCE = 0.25
"""Requests of one window share their fate: each counts as this many independent ones."""
_KEPT = 0.95
"""Share of its weight that a window keeps with each that follows: about the latest twenty count."""
_BUSY_PRIOR_S = 10.0


@dataclass(frozen=True, slots=True)
class ServedWindow:
    """What a replica attained in some window."""

    arrivals_per_s: float
    """Under which those were served that ended."""
    credit_share: float
    num_ended: int
    num_met: int
    served_per_s: float
    """Requests per second that were worked on."""
    busy_share: float
    """Share of the time that serving steps took."""
    seconds: float


class Calibrator:
    """Learns a replica's calibration, window by window.

    The likeliest load factor and lapse on a small grid, each with a prior around none: what load
    explains is told from what happens at any load by windows of different load. A window costs one
    look at the formula for each load factor, so that a front can follow a thousand replicas.
    """

    def __init__(self) -> None:
        """Begin with the priors."""
        self._scores = {(factor, lapse): 0.0 for factor in _LOAD_FACTORS for lapse in _LAPSES}
        """Logarithm of the windows' likelihood, older windows counting less."""
        self._said_s = self._found_s = 0.0

    def observe(self, model: AttainmentModel, window: ServedWindow) -> None:
        """Learn from a window that ``model``, calibrated or not, would foretell."""
        plain = replace(model, calibration=Calibration())
        said_share = 1.0 - plain.free_share(window.served_per_s)
        self._said_s = _KEPT * self._said_s + window.seconds * said_share
        self._found_s = _KEPT * self._found_s + window.seconds * window.busy_share
        if not window.num_ended:
            return
        for factor in _LOAD_FACTORS:
            tried = replace(model, calibration=Calibration(load_factor=factor))
            chance = tried.probability(window.arrivals_per_s, window.credit_share)
            for lapse in _LAPSES:
                found = _EVIDENCE * _log_likelihood(window, (1.0 - lapse) * chance)
                self._scores[factor, lapse] = _KEPT * self._scores[factor, lapse] + found

    @property
    def calibration(self) -> Calibration:
        """The likeliest one; none before there are windows."""
        factor, lapse = max(self._scores, key=self._posterior)
        return Calibration(
            load_factor=factor,
            lapse=lapse,
            busy_factor=(self._found_s + _BUSY_PRIOR_S) / (self._said_s + _BUSY_PRIOR_S),
        )

    def _posterior(self, place: tuple[float, float]) -> float:
        factor, lapse = place
        prior = -0.5 * (math.log(factor) / _FACTOR_SPREAD) ** 2 - _LAPSE_COST * lapse
        return self._scores[place] + prior


def _log_likelihood(window: ServedWindow, chance: float) -> float:
    sure = min(max(chance, 1e-3), 1.0 - 1e-3)
    num_missed = window.num_ended - window.num_met
    return window.num_met * math.log(sure) + num_missed * math.log(1.0 - sure)
