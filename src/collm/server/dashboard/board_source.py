"""Figures of a replica that serves alone: its own board."""

from collections.abc import Mapping

from collm.server.backend import Replica

NAME = "replica"
"""What a replica without a name is called on the page."""


class BoardSource:
    """Shows one replica, while its step loop lives."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def figures(self) -> Mapping[str, object]:
        """Return its figures."""
        return {NAME: self._replica.snapshot() if self._replica.is_alive else None}
