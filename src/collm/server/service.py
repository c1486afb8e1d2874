"""What every route of one server shares."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fastapi import Request

from collm.server.backend import Replica
from collm.server.config import ServerConfig
from collm.server.errors import UnavailableError
from collm.types import RequestId


def _random_id() -> str:
    return secrets.token_hex(12)


@dataclass(slots=True, kw_only=True)
class Service:
    """A replica, its HTTP settings, and the requests in flight."""

    replica: Replica
    config: ServerConfig
    wall_time_s: Callable[[], float] = time.time
    """Seconds since 1970; clients see it as ``created``."""
    new_id: Callable[[], str] = _random_id
    """Makes the part of a request id that is unique."""
    open_ids: set[RequestId] = field(default_factory=set)
    """Requests in flight."""
    started_at: int = field(init=False)

    def __post_init__(self) -> None:
        self.started_at = int(self.wall_time_s())

    def require_alive(self) -> None:
        """Raise ``UnavailableError`` when the replica's step loop has ended."""
        if not self.replica.is_alive:
            raise UnavailableError("The replica's step loop has ended; restart the server.")


def service_of(request: Request) -> Service:
    """Return the service that the request's app was made for."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
