"""The adapter versions of a simulated replica: what they know, which one is served."""

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
    """Says which version requests are served by, as ``lora.AdapterStore`` does on a replica.

    There is a slot for every version, so that all are kept: waiting for one is left out.

    Args:
        first: What is active at the start.
    """

    def __init__(self, first: Version) -> None:
        self.active = first
        """What new requests are bound to."""
        self.known = {first.version: first}
        """Every version that was ever active."""
        self._slots = {first.version: 0, BASE: BASE_SLOT}
        self._binding = self._bind()

    def is_version(self, model: str) -> bool:
        """Return ``False``: simulated requests name the adapter."""
        return False

    def pin(self, model: str) -> Binding:
        """Return the active version and its slot."""
        return self._binding

    def unpin(self, binding: Binding) -> None:
        """Do nothing: what nobody holds any more stays as well."""

    def promote(self, version: Version) -> None:
        """Bind new requests to ``version`` from now on."""
        self.active = version
        self.known[version.version] = version
        self._slots.setdefault(version.version, len(self._slots))
        self._binding = self._bind()

    def _bind(self) -> Binding:
        version = self.active.version
        return Binding(version, self._slots[version])
