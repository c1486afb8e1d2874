"""What other threads tell the step loop: frozen messages in one queue."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from collm.federated.allotment import Allotment
from collm.federated.rounds import GatePlan, RoundPlan
from collm.lora.state import AdapterState
from collm.store.jobs import JobRecord
from collm.store.versions import PublishedVersion
from collm.training.base_version import BaseVersion
from collm.training.samples import TokenSample
from collm.training.trainer import AnyJob
from collm.types import Request, RequestId, RollbackCause, VersionId, VersionInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Submit:
    """Start the requests of one call; several are served by one version."""

    requests: tuple[Request, ...]


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
    reason: str = "asked for"
    """Why it is to be promoted, for the record of the decision."""
    cause: RollbackCause | None = None
    """Why the version before is taken back by all who serve it, if this is a return to an earlier
    one."""
    digest: str | None = None
    """The state's digest, if it was taken already."""
    reply: "Future[VersionInfo] | None" = None
    """Told when the version is active, or why it never will be."""

    @classmethod
    def local(
        cls, published: PublishedVersion, state: AdapterState, numbers: Mapping[str, Any]
    ) -> Self:
        """Return the message about a copy of a shadow, as it is on disk now."""
        return cls(
            adapter=published.adapter,
            version=published.version,
            state=state,
            metadata=published.metadata,
            numbers=numbers,
            is_local=True,
            reason="better on held-out samples",
            digest=published.digest,
        )

    @classmethod
    def foreign(
        cls,
        published: PublishedVersion,
        state: AdapterState,
        reason: str,
        reply: "Future[VersionInfo] | None",
        numbers: Mapping[str, Any] | None = None,
        cause: RollbackCause | None = None,
    ) -> Self:
        """Return the message about a version that somebody asks for."""
        return cls(
            adapter=published.adapter,
            version=published.version,
            state=state,
            metadata=published.metadata,
            numbers=numbers or {},
            is_local=False,
            reason=reason,
            cause=cause,
            digest=published.digest,
            reply=reply,
        )


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
class ReturnToBase:
    """Serve the bare base model under an adapter's name; no effect if that is so already."""

    adapter: str
    cause: RollbackCause
    reason: str
    numbers: Mapping[str, Any]
    """What speaks for it; both for the record of the decision."""
    reply: "Future[None]"


@dataclass(frozen=True, slots=True)
class Unload:
    """Stop serving an adapter."""

    adapter: str
    reply: "Future[None]"


@dataclass(frozen=True, slots=True)
class Keep:
    """Let requests name a version, active or not, until ``Release``; ``reply`` is the version's."""

    published: Published


@dataclass(frozen=True, slots=True)
class Release:
    """Keep a version no longer than it is needed."""

    version: VersionId
    reply: "Future[None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddJob:
    """Train a job that was built aside."""

    job: AnyJob
    record: JobRecord
    base: VersionId | None
    """The version that it starts from, if its adapter had one."""
    warnings: tuple[str, ...] = ()
    """What whoever started it should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    """Train a job no more."""

    adapter: str
    job_id: str
    reply: "Future[JobRecord]"


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseJob:
    """Let a job rest."""

    adapter: str
    job_id: str
    reply: "Future[JobRecord]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeJob:
    """Let a job that rests go on."""

    adapter: str
    job_id: str
    reply: "Future[JobRecord]"


@dataclass(frozen=True, slots=True)
class AddSamples:
    """Train an adapter's job, if it has one, on more samples."""

    adapter: str
    samples: tuple[TokenSample, ...]


@dataclass(frozen=True, slots=True)
class RemoveSample:
    """Never train on a sample again."""

    adapter: str
    sample_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRound:
    """Let an adapter's job train for a round; no effect on one that is known already."""

    plan: RoundPlan
    base: BaseVersion | None
    """What ``plan`` says to train from; ``None`` for a fresh adapter."""
    reply: "Future[None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRound:
    """Let an adapter's job report what it has for a round."""

    adapter: str
    number: int
    reply: "Future[None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareVersions:
    """Let an adapter's job compare a round's candidate; no effect if it was asked to before."""

    plan: GatePlan
    candidate: AdapterState
    active: AdapterState | None
    """``None`` for the bare base model."""
    reply: "Future[None]"


@dataclass(frozen=True, slots=True)
class Follow:
    """Give credit, time and sizes of steps as the coordinator allots them."""

    allotment: Allotment


@dataclass(frozen=True, slots=True)
class Stop:
    """End the loop after this step."""


VersionMessage = (
    Published
    | PublishFailed
    | Promoted
    | PromotionFailed
    | Rollback
    | ReturnToBase
    | Unload
    | Keep
    | Release
)
JobMessage = AddJob | CancelJob | PauseJob | ResumeJob | AddSamples | RemoveSample
RoundMessage = StartRound | FinishRound | CompareVersions
Message = Submit | Finish | Abort | Follow | Stop | VersionMessage | JobMessage | RoundMessage


def tell(reply: "Future[T] | None", outcome: T | Exception) -> None:
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
