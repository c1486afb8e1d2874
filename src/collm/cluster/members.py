"""The live replicas as the coordinator meets them: their snapshots, and a line to each."""

from collections.abc import Callable, Mapping

from collm.cluster.client import MemberControl
from collm.errors import UnreachableError
from collm.types import ReplicaSnapshot


class Members:
    """Who is alive now, and how to talk to them."""

    def __init__(
        self,
        live: Callable[[], Mapping[str, ReplicaSnapshot]],
        connect: Callable[[str], MemberControl],
    ) -> None:
        """Ask for the live replicas each time anew.

        Args:
            live: The latest snapshot of each replica that answers, by id.
            connect: Returns the line to a replica by its URL; it costs nothing until used.
        """
        self._live = live
        self._connect = connect

    def live(self) -> dict[str, ReplicaSnapshot]:
        """Return the latest snapshot of each replica that answers, by id."""
        return dict(self._live())

    def control(self, member: str) -> MemberControl:
        """Return the line to a live replica; raises ``UnreachableError`` when it is not live."""
        snapshot = self._live().get(member)
        if snapshot is None:
            raise UnreachableError(f"replica {member} does not answer")
        return self._connect(snapshot.url)
