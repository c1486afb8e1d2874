"""When a replica serves at all."""

import math
from dataclasses import dataclass
from typing import Protocol


class Duty(Protocol):
    """Says when the step loop may serve, and when it may train although nobody is served."""

    def serves(self, now_s: float) -> bool:
        """Whether steps may begin now."""
        ...

    def changes_s(self, now_s: float) -> float:
        """Return when the answer may change; infinite for never."""
        ...


class AlwaysOn:
    """Serves at any time, as every replica of collm does."""

    def serves(self, now_s: float) -> bool:
        """Whether steps may begin now."""
        return True

    def changes_s(self, now_s: float) -> float:
        """Return when the answer may change."""
        return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifts:
    """Serves and trains in turns, one system after the other on the same device.

    ::

        serve │ reload │ train │ reload │ serve …
    """

    shift_s: float
    """Length of a turn of serving, and of one of training."""
    reload_s: float
    """Between two turns, when nothing is done."""
    offset_s: float = 0.0
    """How far into its turns the replica is at the start."""

    def serves(self, now_s: float) -> bool:
        """Whether steps may begin now."""
        return self._place_s(now_s) < self.shift_s

    def trains(self, now_s: float) -> bool:
        """Whether quanta may begin now."""
        since_s = self._place_s(now_s) - self.shift_s - self.reload_s
        return 0.0 <= since_s < self.shift_s

    def changes_s(self, now_s: float) -> float:
        """Return when the next turn or reload begins."""
        place_s = self._place_s(now_s)
        ends_s = 0.0
        for length_s in (self.shift_s, self.reload_s, self.shift_s, self.reload_s):
            ends_s += length_s
            if place_s < ends_s:
                # A nudge past the border: rounding must not lead back to before it.
                return now_s + (ends_s - place_s) + 1e-9
        return now_s + 1e-9

    def _place_s(self, now_s: float) -> float:
        return (now_s + self.offset_s) % (2.0 * (self.shift_s + self.reload_s))
