"""What comes for a simulated step loop."""

import math
from collections import deque

from collm.sim.log import OpenRequest
from collm.types import Request


class SimInbox:
    """Requests on their way to the step loop, and those that have come."""

    def __init__(self) -> None:
        self._requests: deque[tuple[float, Request, OpenRequest]] = deque()
        self.now_s = 0.0

    def put(self, due_s: float, request: Request, entry: OpenRequest) -> None:
        """Let a request come at ``due_s``, not before one that was put earlier."""
        self._requests.append((due_s, request, entry))

    @property
    def next_s(self) -> float:
        """When the next request comes or came; infinite without any."""
        return self._requests[0][0] if self._requests else math.inf

    def has_messages(self) -> bool:
        """Whether a request has come."""
        return bool(self._requests) and self._requests[0][0] <= self.now_s

    def take(self) -> tuple[Request, OpenRequest]:
        """Return the first request that has come."""
        _, request, entry = self._requests.popleft()
        return request, entry
