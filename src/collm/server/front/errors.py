"""What goes wrong between the front and its replicas."""

from collm.errors import CollmError, QueueFullError
from collm.server.errors import UnavailableError


class UpstreamError(CollmError):
    """A replica cannot be reached, or its answer broke off."""


class NotReachedError(UpstreamError):
    """No connection could be made, so that the replica has seen nothing of the call."""


class NoReplicaError(UnavailableError):
    """No replica, or not the one that holds what was asked for, can answer now."""


class TurnedAwayError(QueueFullError):
    """The router declined a request that could not be answered in time.

    Args:
        message: Why.
        retry_after_s: When the same request has a chance.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
