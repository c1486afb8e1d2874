"""The adapter versions of a simulated replica: what they know, who holds them."""

from collections.abc import Callable
from dataclasses import dataclass

from collm.types import BASE, BASE_SLOT, Binding, VersionId

ADAPTER = "adapter"
"""Name of the one adapter that is served and trained."""


@dataclass(frozen=True, slots=True)
class Version:
    """A published version: what it was trained on says how good it is."""

    version: VersionId
    knowledge: tuple[float, ...]
    """Effective training tokens of each domain."""


class Versions:
    """Holds versions for requests, as ``lora.AdapterStore`` does on a replica.

    There is a slot for every version: waiting for one is left out.

    Args:
        first: What is active at the start.
        evict: Called with a version that nobody holds any more.
    """

    def __init__(self, first: Version, evict: Callable[[VersionId], None]) -> None:
        self.active = first
        """What new requests are bound to."""
        self.known = {first.version: first}
        """Every version that was ever active."""
        self._evict = evict
        self._pins: dict[VersionId, int] = {}
        self._slots = {first.version: 0, BASE: BASE_SLOT}

    def is_version(self, model: str) -> bool:
        """Return ``False``: simulated requests name the adapter."""
        return False

    def pin(self, model: str) -> Binding:
        """Hold the active version."""
        version = self.active.version
        self._pins[version] = self._pins.get(version, 0) + 1
        return Binding(version, self._slots[version])

    def unpin(self, binding: Binding) -> None:
        """Let go of what ``pin`` returned; the last one out frees a version no longer active."""
        left = self._pins[binding.version] - 1
        self._pins[binding.version] = left
        if not left and binding.version != self.active.version:
            self._evict(binding.version)

    def promote(self, version: Version) -> None:
        """Bind new requests to ``version`` from now on."""
        before, self.active = self.active, version
        self.known[version.version] = version
        self._slots.setdefault(version.version, len(self._slots))
        if before.version != version.version and not self._pins.get(before.version):
            self._evict(before.version)
