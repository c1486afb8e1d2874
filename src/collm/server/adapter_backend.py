"""What the routes about adapters and feedback need, as protocols.

``replica.feedback`` and ``replica.adapters`` fit in production; tests use fakes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from collm.errors import RequestError
from collm.store.decisions import Decision
from collm.store.feedback import Feedback
from collm.store.pages import Page
from collm.store.responses import StoredResponse
from collm.store.versions import PublishedVersion
from collm.types import VersionId, VersionInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackRequest:
    """What a user says about one choice of an answer; at least one of answer and rating."""

    response_id: str
    """The id that the answer came with."""
    choice: int = 0
    """The choice's ``index``."""
    answer: str | None = None
    """What would have been the better answer."""
    rating: float | None = None
    """How good the served answer was, in [0, 1]."""

    def __post_init__(self) -> None:
        if self.answer is None and self.rating is None:
            raise RequestError("give 'answer', 'rating' or both", param="answer")
        if self.answer is not None and not self.answer.strip():
            raise RequestError(
                "'answer' is blank; leave it out to give a rating alone",
                param="answer",
                code="invalid_value",
            )
        if self.rating is not None and not 0 <= self.rating <= 1:
            raise RequestError(
                f"'rating' is {self.rating}; allowed: 0 to 1", param="rating", code="invalid_value"
            )


class FeedbackDesk(Protocol):
    """Remembers answers and turns what users say about them into training samples."""

    def record(self, response: StoredResponse) -> None:
        """Take a complete answer for later feedback.

        Returns at once: writing happens elsewhere, and a full queue drops the answer. Feedback on
        an answer taken here is accepted from now on, whether it has reached the disk or not.
        """
        ...

    async def add(self, request: FeedbackRequest) -> Feedback:
        """Keep feedback durably, then hand its sample to the adapter's running job.

        Raises:
            UnknownObjectError: No such response.
            RequestError: No such choice, or a text that is too long.
            StateError: The adapter has been given the same sample before, or the answer was wiped.
        """
        ...

    async def get(self, feedback_id: str) -> Feedback:
        """Return one; raises ``UnknownObjectError``."""
        ...

    async def list(
        self, *, adapter: str | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Feedback]:
        """Return some of an adapter's feedback, or of all, newest first."""
        ...

    async def delete(self, feedback_id: str) -> Feedback:
        """Wipe the text, and the answer that it is about, and exclude it from training and replay.

        Raises:
            UnknownObjectError: There is no such feedback.
        """
        ...


class AdapterDesk(Protocol):
    """Moves adapter versions between disk, device and outside, and says what happened to them."""

    async def history(self, adapter: str, *, limit: int | None = None) -> tuple[Decision, ...]:
        """Return the decisions about an adapter, or only the latest ``limit``; oldest first.

        Raises:
            UnknownAdapterError: There is no such adapter.
        """
        ...

    async def published(self) -> tuple[PublishedVersion, ...]:
        """Return the versions on disk, in order of publication."""
        ...

    async def pinned(self) -> frozenset[VersionId]:
        """Return the versions that an operator pinned."""
        ...

    async def promote(self, version: str) -> VersionInfo:
        """Make a version its adapter's active one; raises ``AdapterError``."""
        ...

    async def rollback(self, adapter: str) -> VersionInfo:
        """Return an adapter to the version before, or ``BASE``; raises ``AdapterError``."""
        ...

    async def pin(self, version: str) -> None:
        """Keep a version on disk and on the device; raises ``UnknownAdapterError``."""
        ...

    async def unpin(self, version: str) -> None:
        """Undo ``pin``; no effect on one that is not pinned; raises ``UnknownAdapterError``."""
        ...

    async def export(self, version: str) -> bytes:
        """Return a zip archive of the version's PEFT folder; raises ``UnknownAdapterError``."""
        ...

    async def import_folder(
        self, name: str, config: bytes, weights_path: Path, *, promote: bool
    ) -> VersionInfo:
        """Publish a version from outside, and make it the active one on request.

        Args:
            name: The adapter.
            config: Content of ``adapter_config.json``.
            weights_path: A safetensors file, which may be gone when this returns.
            promote: Whether it becomes the active version.

        Raises:
            RequestError: A file is malformed; ``param`` names the part.
            AdapterError: The adapter does not fit the base model.
        """
        ...

    async def load(self, name: str, path: str, *, in_place: bool) -> VersionInfo:
        """Serve a PEFT folder of this machine under a name.

        Args:
            name: The name that requests use.
            path: A folder below the one that the configuration allows.
            in_place: Whether a name that is loaded already takes the new content.

        Raises:
            RequestError: The name is taken, or the path is not allowed or holds no good adapter.
            UnknownAdapterError: There is no folder at ``path``.
            AdapterError: The adapter does not fit the base model.
        """
        ...

    async def unload(self, name: str) -> None:
        """Stop serving a name to new requests; raises ``UnknownAdapterError``."""
        ...
