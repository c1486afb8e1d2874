"""Notices that a process hangs: it lives, and says nothing any more."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from collm.cluster.endpoints import Endpoint
from collm.cluster.hosts import Process
from collm.cluster.keeper import KeeperTime
from collm.errors import CollmError

_log = logging.getLogger(__name__)
_LOOK_EVERY_S = 5.0
_TIMEOUT_S = 5.0

Ask = Callable[[Endpoint], Awaitable[object]]
"""Asks a process whether it is well; raises ``OSError`` or ``CollmError`` without an answer."""


class HangWatch:
    """Asks a process whether it is well until it has been silent for too long.

    Silence is counted in questions, not by the clock: a machine that stood still as a whole gives
    no reason to start everything anew.

    Args:
        ask: Asks it.
        time: Clock and waits.
        patience_s: Silence that is too long; no shorter than a process that was told to stop may
            go on with its open answers, for it takes no connections meanwhile.
    """

    def __init__(self, ask: Ask, time: KeeperTime, patience_s: float) -> None:
        self._ask = ask
        self._time = time
        self._max_silences = math.ceil(patience_s / _LOOK_EVERY_S)

    async def until_hung(self, endpoint: Endpoint) -> None:
        """Return when a process hangs."""
        clock, num_silences, reason = self._time.clock, 0, ""
        while True:
            asked_at_s = clock.now_s()
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await self._ask(endpoint)
                num_silences = 0
            except (OSError, CollmError) as error:  # a timeout is an OSError
                num_silences, reason = num_silences + 1, str(error) or type(error).__name__
            if num_silences == self._max_silences:
                break
            await self._time.sleep(max(asked_at_s + _LOOK_EVERY_S - clock.now_s(), 0.0))
        _log.warning("%s: no answer to %d questions: %s", endpoint.replica_id, num_silences, reason)


class StartWatch:
    """Looks at what a process says on its way to being ready, until it was silent for too long.

    How long a start may take nobody knows: a model is fetched, files are read. So there is no limit
    for the whole of it. Silence is counted in looks, as above.

    Args:
        time: Waits.
        patience_s: Silence that is too long.
    """

    def __init__(self, time: KeeperTime, patience_s: float) -> None:
        self._time = time
        self._patience_s = patience_s
        self._max_silences = math.ceil(patience_s / _LOOK_EVERY_S)

    async def until_stuck(self, process: Process) -> None:
        """Return when a process hangs."""
        num_lines, num_silences = 0, 0
        while num_silences < self._max_silences:
            await self._time.sleep(_LOOK_EVERY_S)
            num_before, num_lines = num_lines, process.num_lines
            num_silences = num_silences + 1 if num_lines == num_before else 0
        _log.warning("pid %d: not ready, and silent for %g s", process.pid, self._patience_s)
