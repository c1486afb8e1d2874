"""What other threads tell the step loop: frozen messages in one queue."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from collm.lora.state import AdapterState
from collm.types import Request, RequestId, VersionId, VersionInfo


@dataclass(frozen=True, slots=True)
class Submit:
    """Start a request."""

    request: Request


@dataclass(frozen=True, slots=True)
class Finish:
    """End one choice of a request: its text met a stop string."""

    request_id: RequestId
    choice: int


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request's choices that still run."""

    request_id: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A version is on disk and may be staged."""

    adapter: str
    version: VersionId
    state: AdapterState
    metadata: Mapping[str, str]
    numbers: Mapping[str, Any]
    """What speaks for it, for the record of the decision."""
    is_local: bool
    """Whether it is a copy of this replica's own shadow, which then simply trains on."""
    digest: str | None = None
    """The state's digest, if it was taken already."""
    reply: "Future[VersionInfo] | None" = None
    """Told when the version is active, or why it never will be."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """The decision to promote a staged version is on disk; flip now."""

    published: Published


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """A version could not be written; there is none."""

    adapter: str
    state: AdapterState
    error: Exception


@dataclass(frozen=True, slots=True)
class PromotionFailed:
    """The decision to promote a staged version could not be written; do not flip."""

    published: Published
    error: Exception


@dataclass(frozen=True, slots=True)
class Rollback:
    """Return an adapter to the version before."""

    adapter: str
    reply: "Future[VersionInfo]"


@dataclass(frozen=True, slots=True)
class Stop:
    """End the loop after this step."""


Message = (
    Submit
    | Finish
    | Abort
    | Published
    | PublishFailed
    | Promoted
    | PromotionFailed
    | Rollback
    | Stop
)


def tell(reply: "Future[VersionInfo] | None", outcome: VersionInfo | Exception) -> None:
    """Settle a reply, unless nobody waits for it; any thread may."""
    if reply is None or not reply.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Exception):
        reply.set_exception(outcome)
    else:
        reply.set_result(outcome)


class Inbox:
    """A queue that the loop drains between steps; any thread may put."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._arrived = threading.Event()

    def put(self, message: Message) -> None:
        """Add a message and wake a waiting loop."""
        self._messages.append(message)
        self._arrived.set()

    def has_messages(self) -> bool:
        """Return whether a message waits; costs next to nothing."""
        return bool(self._messages)

    def drain(self, handle: Callable[[Message], None]) -> None:
        """Hand every waiting message to ``handle``, in order of arrival."""
        self._arrived.clear()
        while self._messages:
            handle(self._messages.popleft())

    def wait(self, timeout_s: float) -> None:
        """Sleep until a message comes or the time is over."""
        self._arrived.wait(timeout_s)
