"""Time as an argument: modules take a ``Clock`` and never read the time themselves."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic time."""

    def now_s(self) -> float:
        """Return seconds since an arbitrary fixed origin; never decreases."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Return seconds of the process-wide monotonic clock."""
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to; for simulations and tests."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        """Return the time set last."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward by ``seconds``; raises ``ValueError`` when that is negative."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back: {seconds} s")
        self._now_s += seconds
