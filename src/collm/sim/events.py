"""What happens next, in an order that a seed alone decides."""

import math
from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush

Action = Callable[[float], None]
"""Is told the virtual time at which it runs, in seconds."""


class Rank(IntEnum):
    """The order of events at the same instant.

    A fault comes first, snapshots are taken before rounds and allocations read them, and requests
    arrive last. Events of one rank run in the order in which they were put. What a replica finishes
    at t is no event: it is done when somebody looks at the replica at t.
    """

    FAULT = 0
    SNAPSHOT = 1
    ROUND = 2
    ALLOCATION = 3
    ARRIVAL = 4


class EventQueue:
    """Runs actions in order of (time, rank, order of putting)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Action]] = []
        self._num_put = 0
        self.now_s = 0.0
        """Time of the action that runs, or ran last."""

    def put(self, at_s: float, rank: Rank, action: Action) -> None:
        """Run ``action`` at ``at_s``, which is not before the present."""
        assert at_s >= self.now_s, (at_s, self.now_s)
        self._num_put += 1
        heappush(self._heap, (at_s, rank, self._num_put, action))

    @property
    def next_s(self) -> float:
        """When the next action is due; infinite if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def run_next(self) -> None:
        """Run the next action; call it only when there is one."""
        at_s, _, _, action = heappop(self._heap)
        self.now_s = at_s
        action(at_s)
