"""Does a promoted version hold up on what users send afterwards?"""

import math
import sys
from collections.abc import Sequence
from typing import Any

from collm.gate.evidence import Evidence, gain
from collm.types import VersionId, WatchState

REGRESSION = "regression on live feedback"
"""Why a version is taken back that did not hold up, for the record of the decision."""


def pooled(capitals: Sequence[float]) -> float:
    """Return the capital of one gambler who bets against a version wherever it is watched.

    Half of the stake goes from watch to watch as a whole, so that a little that all of them see
    adds up; the other half is shared out among them, so that one alone can prove it, whatever the
    others see. Where the version is no worse for anybody, each watch's capital is a supermartingale
    from 1 on, and of feedback that comes one at a time so are their product and their mean: by
    Ville's inequality this ever reaches ``1 / error`` with a chance of ``error`` at most.

    Args:
        capitals: One for each watch, 1 for one that has seen nothing yet; at least one.
    """
    product = math.prod(capitals) if all(capitals) else 0.0  # no 0 times infinity
    capital = (product + sum(capitals) / len(capitals)) / 2.0
    return min(capital, sys.float_info.max)  # JSON has no infinity


class Watch:
    """Compares the served version with the one before it on fresh feedback, from a promotion on.

    Args:
        error: Chance, over the whole watch, that a version which is no worse counts as regressed.
        previous: Version to return to.
        active: Version that was promoted.
    """

    def __init__(self, error: float, previous: VersionId, active: VersionId) -> None:
        self._error = error
        self._previous = previous
        self._active = active
        self._evidence = Evidence()
        self._is_broken = False
        self._num_samples = 0
        self._num_finite = 0
        self._active_sum = 0.0
        self._previous_sum = 0.0

    @property
    def previous(self) -> VersionId:
        """Version to return to."""
        return self._previous

    @property
    def active(self) -> VersionId:
        """Version that is watched."""
        return self._active

    @property
    def has_regressed(self) -> bool:
        """Whether the served version is shown to be worse; once true it stays so."""
        return self._is_broken or self._evidence.proves(self._error)

    def add(self, active_loss: float, previous_loss: float) -> None:
        """Compare both on one feedback sample that neither was trained on.

        Args:
            active_loss: Mean nats per supervised token under the served version.
            previous_loss: The same under the version before it.
        """
        self._num_samples += 1
        self._evidence.add(gain(active_loss, previous_loss))
        if math.isfinite(active_loss) and math.isfinite(previous_loss):
            self._num_finite += 1
            self._active_sum += active_loss
            self._previous_sum += previous_loss
        elif math.isfinite(previous_loss):
            self._is_broken = True  # it fails where the other does not: no statistics needed

    def state(self) -> WatchState:
        """Return what is known so far, for whoever decides by several watches."""
        active_loss, previous_loss = self._means()
        return WatchState(
            active=self._active,
            previous=self._previous,
            capital=self._evidence.value,
            num_samples=self._num_samples,
            active_loss=active_loss,
            previous_loss=previous_loss,
            is_finite=not self._is_broken,
        )

    def numbers(self) -> dict[str, Any]:
        """Return what the decisions table records; JSON-ready."""
        active_loss, previous_loss = self._means()
        return {
            "active": self._active,
            "previous": self._previous,
            "num_samples": self._num_samples,
            "active_loss": active_loss,
            "previous_loss": previous_loss,
            "evidence": self._evidence.peak,
            "is_finite": not self._is_broken,
        }

    def _means(self) -> tuple[float | None, float | None]:
        """Return both mean losses over the samples with two finite ones; ``None`` without any."""
        count = self._num_finite
        return (self._active_sum / count, self._previous_sum / count) if count else (None, None)
