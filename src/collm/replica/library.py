"""Published versions: written under the next number, and read back from disk."""

from collections.abc import Mapping
from concurrent.futures import Future

from collm.errors import AdapterError
from collm.lora.peft_folder import load_peft, save_peft
from collm.lora.state import AdapterState
from collm.model.spec import ModelSpec
from collm.replica.inbox import Published
from collm.store.versions import PublishedVersion, VersionStore
from collm.types import VersionId, VersionInfo


class Library:
    """Versions for one base model; any thread may read, the archive's alone publishes.

    Args:
        versions: What is on disk.
        spec: Shapes of the base model.
        base_model: Name of the base model.
        base_digest: Its digest; what was made for other weights is refused.
    """

    def __init__(
        self, versions: VersionStore, spec: ModelSpec, base_model: str, base_digest: str
    ) -> None:
        self._versions = versions
        self._spec = spec
        self._base_model = base_model
        self.base_digest = base_digest

    def publish(
        self, adapter: str, state: AdapterState, metadata: Mapping[str, str]
    ) -> PublishedVersion:
        """Write a state under the adapter's next number; raises ``AdapterError``."""
        return self._versions.publish(
            adapter,
            str(self._versions.next_number(adapter)),
            digest=state.digest(),
            base_digest=self.base_digest,
            rank=state.layout.rank,
            metadata=metadata,
            write=lambda folder: save_peft(state, folder, self._base_model, self.base_digest),
        )

    def load(self, version: VersionId) -> tuple[PublishedVersion, AdapterState]:
        """Return a version and its factors.

        Raises:
            AdapterError: It is unknown, damaged, or was made for another base model.
        """
        published = self._versions.get(version)
        if published.base_digest != self.base_digest:
            raise AdapterError(
                f"version {version} was made for base {published.base_digest[:12]}; "
                f"this replica serves {self.base_digest[:12]}"
            )
        state = load_peft(published.folder, self._spec, self.base_digest)
        if state.digest() != published.digest:
            raise AdapterError(f"version {version} is damaged: its content hash differs")
        return published, state

    def read(self, version: VersionId, reply: "Future[VersionInfo] | None") -> Published:
        """Return the message that brings a version to the loop; raises as ``load``."""
        return Published.foreign(*self.load(version), reason="asked for", reply=reply)
