"""How a replica differs from the formula of its chances, by what was seen of it."""

import math
from dataclasses import dataclass, replace
from operator import add

from collm.cluster.planning.attainment import AttainmentModel, Calibration

_LOAD_FACTORS = tuple(2.0 ** (step / 6.0) for step in range(-9, 10))
_ODDS = (
    *(Calibration(lapse=lapse) for lapse in (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)),
    *(Calibration(miss_factor=miss_factor) for miss_factor in (0.5, 0.25, 0.1)),
)
"""Lapse and miss factor: one of them at most tells more or fewer misses than load explains."""
_FACTOR_SPREAD = 0.4
"""Prior standard deviation of the load factor's logarithm."""
_LAPSE_COST = 10.0
"""Prior log-odds lost per unit of lapse."""
_MISS_SPREAD = 1.0
"""The same of the miss factor's."""
_FELT_SHARES = (0.1, 0.3, 1.0)
_FELT_SPREAD = 0.8
"""Prior standard deviation of the felt share's logarithm."""
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

    The likeliest load factor, lapse or miss factor, and felt share on a small grid, each with a
    prior: what load explains is told from what happens at any load by windows of different load.
    Credit is believed to be felt in full until windows with credit say otherwise. A window costs
    one look at the formula for each load factor, three with credit, so that a front can follow a
    thousand replicas.
    """

    def __init__(self) -> None:
        """Begin with the priors."""
        self._scores = [0.0] * len(_TRIED)
        """Logarithm of the windows' likelihood under each, older windows counting less."""
        self._said_s = self._found_s = 0.0

    def observe(self, model: AttainmentModel, window: ServedWindow) -> None:
        """Learn from a window that ``model``, calibrated or not, would foretell."""
        plain = replace(model, calibration=Calibration())
        said_share = 1.0 - plain.free_share(window.served_per_s)
        self._said_s = _KEPT * self._said_s + window.seconds * said_share
        self._found_s = _KEPT * self._found_s + window.seconds * window.busy_share
        if not window.num_ended:
            return
        # Without credit all felt shares say the same.
        felt_shares = _FELT_SHARES if window.credit_share > 0.0 else _FELT_SHARES[:1]
        found: list[float] = []
        for factor in _LOAD_FACTORS:
            chances = [
                replace(
                    model, calibration=Calibration(load_factor=factor, felt_share=felt_share)
                ).probability(window.arrivals_per_s, window.credit_share)
                for felt_share in felt_shares
            ]
            for odds in _ODDS:
                likely = [_log_likelihood(window, odds.corrected(chance)) for chance in chances]
                found += likely if len(likely) > 1 else likely * len(_FELT_SHARES)
        self._scores = [
            _KEPT * score + _EVIDENCE * more
            for score, more in zip(self._scores, found, strict=True)
        ]

    @property
    def calibration(self) -> Calibration:
        """The likeliest one; before there are windows, that of the priors."""
        totals = [*map(add, self._scores, _PRIORS)]
        return replace(
            _TRIED[totals.index(max(totals))],
            busy_factor=(self._found_s + _BUSY_PRIOR_S) / (self._said_s + _BUSY_PRIOR_S),
        )


def _prior(tried: Calibration) -> float:
    """Return the logarithm of how likely a calibration is before anything is seen."""
    prior = -0.5 * (math.log(tried.load_factor) / _FACTOR_SPREAD) ** 2
    prior -= 0.5 * (math.log(tried.miss_factor) / _MISS_SPREAD) ** 2
    prior -= 0.5 * (math.log(tried.felt_share) / _FELT_SPREAD) ** 2
    return prior - _LAPSE_COST * tried.lapse


_TRIED = tuple(
    replace(odds, load_factor=load_factor, felt_share=felt_share)
    for load_factor in _LOAD_FACTORS
    for odds in _ODDS
    for felt_share in _FELT_SHARES
)
_PRIORS = tuple(map(_prior, _TRIED))


def _log_likelihood(window: ServedWindow, chance: float) -> float:
    sure = min(max(chance, 1e-3), 1.0 - 1e-3)
    num_missed = window.num_ended - window.num_met
    return window.num_met * math.log(sure) + num_missed * math.log(1.0 - sure)
