"""An attainment that is asked for thousands of loads, computed at few of them."""

import math

from collm.cluster.planning.problem import Attainment

_RATIO = 1.15
_LOG_RATIO = math.log(_RATIO)
"""Loads of the table are this factor apart: between two of them the chance is nearly straight."""
_LEAST_LOAD = 1e-3


class Tabulated:
    """Interpolates between loads, each computed when it is first needed; credits are exact.

    A model may integrate over all that a request can meet. A search over many replicas asks for
    loads that lie close together, and for a few credits.
    """

    def __init__(self, attainment: Attainment) -> None:
        """Ask ``attainment``, whose answers must not change meanwhile."""
        self._attainment = attainment
        self._chances: dict[float, dict[int, float]] = {}
        self._free: dict[int, float] = {}

    def probability(self, arrivals_per_s: float, credit_share: float) -> float:
        """Return the chance that a request meets its objectives."""
        chances = self._chances.get(credit_share)
        if chances is None:
            chances = self._chances[credit_share] = {}
        below, part = _place(arrivals_per_s)
        low, high = chances.get(below), chances.get(below + 1)
        if low is None:
            low = self._attainment.probability(_load(below), credit_share)
            chances[below] = low
        if high is None:
            high = self._attainment.probability(_load(below + 1), credit_share)
            chances[below + 1] = high
        return low + part * (high - low)

    def free_share(self, arrivals_per_s: float) -> float:
        """Return the share of wall time that serving leaves over."""
        below, part = _place(arrivals_per_s)
        low, high = self._free.get(below), self._free.get(below + 1)
        if low is None:
            low = self._free[below] = self._attainment.free_share(_load(below))
        if high is None:
            high = self._free[below + 1] = self._attainment.free_share(_load(below + 1))
        return low + part * (high - low)


def _place(load: float) -> tuple[int, float]:
    """Return the table's place at or below a load, and how far the load is towards the next."""
    if load < _LEAST_LOAD:
        return 0, load / _LEAST_LOAD
    below = 1 + int(math.log(load / _LEAST_LOAD) / _LOG_RATIO)
    low = _load(below)
    return below, min(max((load - low) / (low * (_RATIO - 1.0)), 0.0), 1.0)


def _load(place: int) -> float:
    return _LEAST_LOAD * _RATIO ** (place - 1) if place else 0.0
