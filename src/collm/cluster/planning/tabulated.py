"""An attainment that is asked for thousands of loads, computed at few of them."""

from bisect import bisect_right

from collm.cluster.planning.problem import Attainment

_RATIO = 1.15
"""Loads of the table are this factor apart: between two of them the chance is nearly straight."""
LOADS = (0.0, *(1e-3 * _RATIO**number for number in range(200)))
"""Requests per second that answers are computed for: up to a billion, which no replica bears."""


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
        self._latest = (0.0, 0, 0.0)

    def probability(self, arrivals_per_s: float, credit_share: float) -> float:
        """Return the chance that a request meets its objectives."""
        chances = self._chances.get(credit_share)
        if chances is None:
            chances = self._chances[credit_share] = {}
        load, below, part = self._latest
        if load != arrivals_per_s:
            below, part = self._place(arrivals_per_s)
        low, high = chances.get(below), chances.get(below + 1)
        if low is None:
            low = self._attainment.probability(LOADS[below], credit_share)
            chances[below] = low
        if not part:
            return low
        if high is None:
            high = self._attainment.probability(LOADS[below + 1], credit_share)
            chances[below + 1] = high
        return low + part * (high - low)

    def free_share(self, arrivals_per_s: float) -> float:
        """Return the share of wall time that serving leaves over."""
        load, below, part = self._latest
        if load != arrivals_per_s:
            below, part = self._place(arrivals_per_s)
        low, high = self._free.get(below), self._free.get(below + 1)
        if low is None:
            low = self._free[below] = self._attainment.free_share(LOADS[below])
        if high is None:
            high = self._free[below + 1] = self._attainment.free_share(LOADS[below + 1])
        return low + part * (high - low)

    def _place(self, load: float) -> tuple[int, float]:
        """Return the place at or below a load, and how far the load is towards the next.

        It is remembered: chance and free time are asked for at the same load, one after the other.
        """
        below = min(bisect_right(LOADS, load), len(LOADS) - 1) - 1
        low = LOADS[below]
        part = min((load - low) / (LOADS[below + 1] - low), 1.0)
        self._latest = (load, below, part)
        return below, part
