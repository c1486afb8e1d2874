"""Once a second: read every replica, make the frames that are due, keep them and pass them on."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

from collm.clock import Clock
from collm.errors import DataError
from collm.server.dashboard.events import event
from collm.server.dashboard.frames import Recent, encode, frame, stretch_of
from collm.server.dashboard.history import History
from collm.server.dashboard.readings import read
from collm.server.dashboard.watchers import Watchers

_log = logging.getLogger(__name__)

PERIOD_S = 1.0
_STUCK_S = 15.0
"""A replica whose figures stand still for so long is not shown as if all were well. Shorter pauses
are long steps."""


class FigureSource(Protocol):
    """Where figures come from: a replica's board, or a front's replicas."""

    async def figures(self) -> Mapping[str, object]:
        """Return what each replica shows on ``/control/snapshot``; ``None`` for silent ones."""
        ...


class Collector:
    """One computation, however many watch; belongs to one event loop.

    Args:
        source: Where figures come from.
        history: Keeps frames.
        watchers: Get them.
        clock: Monotonic time.
        wall_time_s: Seconds since 1970, by which frames are dated.
    """

    def __init__(
        self,
        source: FigureSource,
        history: History,
        watchers: Watchers,
        clock: Clock,
        wall_time_s: Callable[[], float],
    ) -> None:
        self._source = source
        self._history = history
        self._watchers = watchers
        self._clock = clock
        self._wall_time_s = wall_time_s
        self._recent: dict[str, Recent] = {}
        self._due_s = [clock.now_s() + tier.period_s for tier in history.tiers]
        self._has_complained = False

    async def run(self) -> NoReturn:
        """Collect until cancelled; what fails once is tried again the next second."""
        next_s = self._clock.now_s()
        while True:
            try:
                await self.collect()
                self._has_complained = False
            except Exception:
                if not self._has_complained:
                    _log.exception("the dashboard's figures could not be collected")
                self._has_complained = True
            now_s = self._clock.now_s()
            next_s = max(next_s + PERIOD_S, now_s)
            await asyncio.sleep(next_s - now_s)

    async def collect(self) -> None:
        """Read every replica once, and make the frames that are due."""
        figures = await self._source.figures()
        now_s = self._clock.now_s()
        for name in self._recent.keys() - figures.keys():
            del self._recent[name]
        for name, numbers in figures.items():
            self._take(name, numbers, now_s)
        missing = {name for name in figures if not self._moves(name, now_s)}
        for number, tier in enumerate(self._history.tiers):
            # Half a second early is nearer than half a second late.
            if now_s >= self._due_s[number] - PERIOD_S / 2:
                late_s = now_s - self._due_s[number]
                self._due_s[number] += tier.period_s * max(1, int(late_s // tier.period_s) + 1)
                self._make(number, tier.period_s, missing)

    def _take(self, name: str, numbers: object, now_s: float) -> None:
        """Keep a replica's figures; without any, forget those that were."""
        try:
            reading = None if numbers is None else read(numbers)
        except DataError as error:
            _log.debug("replica %s: %s", name, error)
            reading = None
        if reading is None:
            self._recent.pop(name, None)
        else:
            self._recent.setdefault(name, Recent()).add(reading, now_s)

    def _moves(self, name: str, now_s: float) -> bool:
        """Return whether a replica shows figures that do not stand still."""
        recent = self._recent.get(name)
        return recent is not None and now_s - recent.moved_at_s < _STUCK_S

    def _make(self, number: int, period_s: float, missing: set[str]) -> None:
        stretches = {}
        for name in sorted(self._recent.keys() - missing):
            stretch = stretch_of(self._recent[name], period_s)
            if stretch is not None:
                stretches[name] = stretch
        encoded = encode(frame(self._wall_time_s(), stretches, missing))
        self._history.add(number, encoded)
        self._watchers.publish(event("frame", b'{"tier":%d,"frame":%b}' % (number, encoded)))
