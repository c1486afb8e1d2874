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
        self.next_s = math.inf
        """When the next request comes or came; infinite without any."""

    def put(self, due_s: float, request: Request, entry: OpenRequest) -> None:
        """Let a request come at ``due_s``, not before one that was put earlier."""
        self._requests.append((due_s, request, entry))
        self.next_s = self._requests[0][0]

    def has_messages(self) -> bool:
        """Whether a request has come."""
        return self.next_s <= self.now_s

    def take(self) -> tuple[Request, OpenRequest]:
        """Return the first request, come or not; there is one."""
        _, request, entry = self._requests.popleft()
        self.next_s = self._requests[0][0] if self._requests else math.inf
        return request, entry
