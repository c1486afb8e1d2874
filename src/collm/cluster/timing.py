"""Time as the coordinator needs it: to measure, to date, and to wait."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from collm.clock import Clock


@dataclass(frozen=True, slots=True)
class Timing:
    """Where time comes from."""

    clock: Clock
    """Measures; means nothing to another process."""
    wall_s: Callable[[], float]
    """Wall clock, seconds since 1970: what a restarted process goes on by."""
    sleep: Callable[[float], Awaitable[None]]
    """Waits for so many seconds."""
