"""The dashboard of one server: what it keeps, what runs for it, and who watches."""

import asyncio
import time
from collections.abc import Callable

from collm.clock import Clock
from collm.server.dashboard.collector import Collector, FigureSource
from collm.server.dashboard.events import EventStream, event
from collm.server.dashboard.facts import Facts
from collm.server.dashboard.history import History
from collm.server.dashboard.own_api import OwnApi
from collm.server.dashboard.watchers import Watchers


class Dashboard:
    """Belongs to one event loop.

    Args:
        source: Where figures come from.
        api: The server's own routes.
        clock: Monotonic time.
        needs_key: Whether changing what is served takes the admin key.
        wall_time_s: Seconds since 1970.
    """

    def __init__(
        self,
        source: FigureSource,
        api: OwnApi,
        clock: Clock,
        *,
        needs_key: bool,
        wall_time_s: Callable[[], float] = time.time,
    ) -> None:
        self.history = History()
        self.watchers = Watchers()
        self.collector = Collector(source, self.history, self.watchers, clock, wall_time_s)
        self.facts = Facts(api, self.watchers, needs_key=needs_key)

    async def run(self) -> None:
        """Collect until cancelled; then whoever watches is let go."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.collector.run())
                tasks.create_task(self.facts.run())
        finally:
            self.watchers.close()

    def stream(self) -> EventStream:
        """Return what one more watcher gets."""
        return EventStream(self.watchers, self._first)

    def _first(self) -> list[bytes]:
        facts = self.facts.latest
        history = event("history", self.history.encoded())
        return [history] if facts is None else [facts, history]
