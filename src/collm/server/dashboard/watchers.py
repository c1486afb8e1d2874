"""Who watches: each gets every event, and whoever reads too slowly is let go."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from collm.server.errors import UnavailableError

_MAX_WATCHERS = 64
_MAX_WAITING = 30
"""Events that may wait for a watcher: half a minute of frames."""


class Watcher:
    """One open stream."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[bytes] = asyncio.Queue(_MAX_WAITING)
        self.is_dropped = asyncio.Event()
        """Set when it shall get no more, because it is too slow or the server stops."""

    def offer(self, event: bytes) -> None:
        """Let an event wait for it; no room means that it is dropped."""
        try:
            self._events.put_nowait(event)
        except asyncio.QueueFull:
            self.is_dropped.set()

    async def next(self, timeout_s: float) -> bytes | None:
        """Return the next event, or ``None`` when there is none for so long."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._events.get()
        except TimeoutError:
            return None


class Watchers:
    """Passes events on; belongs to one event loop."""

    def __init__(self, max_watchers: int = _MAX_WATCHERS) -> None:
        self._max_watchers = max_watchers
        self._watchers: set[Watcher] = set()
        self._has_come = asyncio.Event()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._watchers)

    @contextmanager
    def joined(self) -> Iterator[Watcher]:
        """Have one more watcher.

        Raises:
            UnavailableError: There are too many already, or the server stops.
        """
        if self._is_closed or len(self._watchers) >= self._max_watchers:
            raise UnavailableError("No more watchers can be served now; try again later.")
        watcher = Watcher()
        self._watchers.add(watcher)
        self._has_come.set()
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def publish(self, event: bytes) -> None:
        """Offer an event to everyone, waiting for nobody."""
        for watcher in self._watchers:
            watcher.offer(event)

    async def wait_for_one(self) -> None:
        """Return when somebody watches."""
        while not self._watchers:
            self._has_come.clear()
            await self._has_come.wait()

    def close(self) -> None:
        """Let everyone go, and take nobody any more."""
        self._is_closed = True
        for watcher in self._watchers:
            watcher.is_dropped.set()
