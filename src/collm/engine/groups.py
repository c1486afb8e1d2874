"""The requests that are not over yet, and the adapter version that each of them holds."""

from typing import Protocol

from collm.engine.sequence import RequestGroup, Sequence
from collm.errors import AdapterError
from collm.types import Binding, Request, RequestId


class VersionPins(Protocol):
    """Holds adapter versions for requests."""

    def is_version(self, model: str) -> bool:
        """Return whether a model name means one version, as long as that is there."""
        ...

    def pin(self, model: str) -> Binding:
        """Hold the version that a model name means now; ``AdapterError`` if there is none."""
        ...

    def unpin(self, binding: Binding) -> None:
        """Let go of a version that ``pin`` returned."""
        ...


class Groups:
    """Owns the groups of live requests, and which of them hold a version.

    A request holds one version until its last choice has let go of its blocks: from its first
    admission, since it is to be answered by what is active then; from its arrival if it names a
    version itself, or shares one with other requests, since that may be gone by its admission.

    Args:
        pins: Where versions are held.
    """

    def __init__(self, pins: VersionPins) -> None:
        self._pins = pins
        self._groups: dict[RequestId, RequestGroup] = {}

    def open(self, request: Request, *, is_shared: bool) -> RequestGroup | AdapterError:
        """Return a new request's group, or why the version that it needs at once is not there."""
        assert request.request_id not in self._groups, f"{request.request_id} was added twice"
        group = RequestGroup(request)
        if is_shared or self._pins.is_version(request.model):
            try:
                self.hold(group)
            except AdapterError as error:
                return error
        self._groups[request.request_id] = group
        return group

    def find(self, request_id: RequestId) -> RequestGroup | None:
        """Return a live request's group; ``None`` for one that is unknown or over."""
        return self._groups.get(request_id)

    def of(self, sequence: Sequence) -> RequestGroup:
        """Return the group of a sequence that was not released."""
        return self._groups[sequence.request.request_id]

    def live(self) -> list[Sequence]:
        """Return the sequences that have not finished."""
        groups = self._groups.values()
        return [one for group in groups for one in group.sequences if not one.is_finished]

    def hold(self, group: RequestGroup) -> bool:
        """Hold what a group's model name means now; return ``False`` if it holds a version already.

        Raises:
            AdapterError: There is no such version.
        """
        if group.binding is not None:
            return False
        group.bind(self._pins.pin(group.request.model))
        return True

    def let_go(self, group: RequestGroup) -> None:
        """Undo ``hold``: the group may get another version later."""
        self._unpin(group)
        group.bind(None)

    def release(self, sequence: Sequence) -> None:
        """Note that a finished sequence holds no blocks; the last one ends its group.

        Its sequences still say which version served them.
        """
        group = self.of(sequence)
        if group.release_one():
            del self._groups[group.request.request_id]
            if group.binding is not None:
                self._unpin(group)

    def _unpin(self, group: RequestGroup) -> None:
        assert group.binding is not None
        self._pins.unpin(group.binding)
        group.binding = None
