"""Published versions, read back from disk."""

from concurrent.futures import Future

from collm.errors import AdapterError
from collm.lora.peft_folder import load_peft
from collm.lora.state import AdapterState
from collm.model.spec import ModelSpec
from collm.replica.inbox import Published
from collm.store.versions import PublishedVersion, VersionStore
from collm.types import VersionId, VersionInfo


class Library:
    """Reads versions for one base model; may be used from any thread."""

    def __init__(self, versions: VersionStore, spec: ModelSpec, base_digest: str) -> None:
        """Read from ``versions``; refuse what was made for other weights than ``base_digest``."""
        self._versions = versions
        self._spec = spec
        self._base_digest = base_digest

    def load(self, version: VersionId) -> tuple[PublishedVersion, AdapterState]:
        """Return a version and its factors.

        Raises:
            AdapterError: It is unknown, damaged, or was made for another base model.
        """
        published = self._versions.get(version)
        if published.base_digest != self._base_digest:
            raise AdapterError(
                f"version {version} was made for base {published.base_digest[:12]}; "
                f"this replica serves {self._base_digest[:12]}"
            )
        state = load_peft(published.folder, self._spec)
        if state.digest() != published.digest:
            raise AdapterError(f"version {version} is damaged: its content hash differs")
        return published, state

    def read(self, version: VersionId, reply: "Future[VersionInfo] | None") -> Published:
        """Return the message that brings a version to the loop."""
        published, state = self.load(version)
        return Published(
            adapter=published.adapter,
            version=published.version,
            state=state,
            metadata=published.metadata,
            numbers={},
            is_local=False,
            digest=published.digest,
            reply=reply,
        )
