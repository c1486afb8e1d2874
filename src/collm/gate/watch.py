"""Does a promoted version hold up on what users send afterwards?"""

import math
from typing import Any

from collm.gate.evidence import Evidence, gain
from collm.types import VersionId


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

    def numbers(self) -> dict[str, Any]:
        """Return what the decisions table records; JSON-ready."""
        count = self._num_finite
        return {
            "active": self._active,
            "previous": self._previous,
            "num_samples": self._num_samples,
            "active_loss": self._active_sum / count if count else None,
            "previous_loss": self._previous_sum / count if count else None,
            "evidence": self._evidence.peak,
            "is_finite": not self._is_broken,
        }
