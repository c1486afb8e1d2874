"""What every route of one server shares."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fastapi import Request

from collm.server.adapter_backend import AdapterDesk, FeedbackDesk
from collm.server.backend import Backends, Replica
from collm.server.config import ServerConfig
from collm.server.control_backend import RoundDesk
from collm.server.errors import UnavailableError
from collm.server.learning_backend import FineTuning, Uploads
from collm.server.prompt_ratio import PromptRatio, count_template_tokens
from collm.types import RequestId


def _random_id() -> str:
    return secrets.token_hex(12)


@dataclass(frozen=True, slots=True)
class Membership:
    """A replica's place in a cluster."""

    name: str
    """In the ids of its answers, so that feedback finds its way home."""
    control_secret: str
    """By which it knows its front."""

    def new_id(self) -> str:
        """Return the part of a request id that is unique."""
        return f"{self.name}-{_random_id()}"


@dataclass(slots=True, kw_only=True)
class Service:
    """What the routes act on, the HTTP settings, and the requests in flight."""

    backends: Backends
    config: ServerConfig
    wall_time_s: Callable[[], float] = time.time
    """Seconds since 1970; clients see it as ``created``."""
    new_id: Callable[[], str] = _random_id
    """Makes the part of a request id that is unique."""
    open_ids: set[RequestId] = field(default_factory=set)
    """Requests in flight."""
    control_secret: str | None = None
    """By which a replica of a cluster knows its front; ``None`` obeys nobody."""
    prompt_ratio: PromptRatio = field(init=False)
    """What is known of prompts' lengths."""
    started_at: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_ratio = PromptRatio(count_template_tokens(self.replica.tokenizer))
        self.started_at = int(self.wall_time_s())

    @property
    def replica(self) -> Replica:
        """The step loop."""
        return self.backends.replica

    @property
    def uploads(self) -> Uploads:
        """Training files."""
        return self.backends.uploads

    @property
    def fine_tuning(self) -> FineTuning:
        """Fine-tuning jobs."""
        return self.backends.fine_tuning

    @property
    def feedback(self) -> FeedbackDesk:
        """Answers, and what users say about them."""
        return self.backends.feedback

    @property
    def adapters(self) -> AdapterDesk:
        """Adapter versions on disk."""
        return self.backends.adapters

    @property
    def rounds(self) -> RoundDesk:
        """What a front asks for."""
        return self.backends.rounds

    def require_alive(self) -> None:
        """Raise ``UnavailableError`` when the replica's step loop has ended."""
        if not self.replica.is_alive:
            raise UnavailableError("The replica's step loop has ended; restart the server.")


def service_of(request: Request) -> Service:
    """Return the service that the request's app was made for."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
