"""Published versions: written under the next number, and read back from disk."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from collm.errors import AdapterError
from collm.lora.peft_folder import load_peft, save_peft
from collm.lora.state import AdapterState
from collm.model.spec import ModelSpec
from collm.replica.inbox import Published
from collm.store.versions import PublishedVersion, VersionStore
from collm.types import RollbackCause, VersionId, VersionInfo


class Library:
    """Versions for one base model; any thread may read, the archive's alone publishes.

    Args:
        versions: What is on disk.
        spec: Shapes of the base model.
        base_model: Name of the base model.
        base_digest: Its digest; what was made for other weights is refused.
        replica: This replica's name in a cluster, where the plain numbers are the coordinator's.
    """

    def __init__(
        self,
        versions: VersionStore,
        spec: ModelSpec,
        base_model: str,
        base_digest: str,
        replica: str | None = None,
    ) -> None:
        self._replica = replica
        self._versions = versions
        self._spec = spec
        self._base_model = base_model
        self.base_digest = base_digest

    def publish(
        self, adapter: str, state: AdapterState, metadata: Mapping[str, str]
    ) -> PublishedVersion:
        """Write a state under the adapter's next number; raises ``AdapterError``.

        In a cluster, version k since the coordinator's N is ``N.REPLICA.k``.
        """
        return self.adopt(adapter, self._next_label(adapter), state, metadata)

    def adopt(
        self, adapter: str, label: str, state: AdapterState, metadata: Mapping[str, str]
    ) -> PublishedVersion:
        """Write a state under a label that somebody else chose.

        Raises:
            AdapterError: The version exists with other content.
        """
        return self._versions.publish(
            adapter,
            label,
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

    def read(
        self,
        version: VersionId,
        reply: "Future[VersionInfo] | None",
        reason: str = "asked for",
        numbers: Mapping[str, Any] | None = None,
        cause: RollbackCause | None = None,
    ) -> Published:
        """Return the message that brings a version to the loop; raises as ``load``."""
        published, state = self.load(version)
        return Published.foreign(published, state, reason, reply, numbers, cause)

    def _next_label(self, adapter: str) -> str:
        next_number = self._versions.next_number(adapter)
        if self._replica is None:
            return str(next_number)
        prefix = f"{next_number - 1}.{self._replica}."
        labels = [version.label for version in self._versions.published(adapter)]
        own = [label.removeprefix(prefix) for label in labels if label.startswith(prefix)]
        return f"{prefix}{1 + max((int(k) for k in own if k.isdecimal()), default=0)}"
