"""Desks for feedback and adapters that keep everything in memory."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path

from collm.errors import AdapterError, StateError, UnknownAdapterError, UnknownObjectError
from collm.server.adapter_backend import FeedbackRequest
from collm.store.decisions import Decision, DecisionKind
from collm.store.feedback import Feedback
from collm.store.pages import Page
from collm.store.responses import StoredResponse
from collm.store.versions import PublishedVersion
from collm.types import VersionId, VersionInfo
from factories.fake_replica import INFO, VERSION

OLD_VERSION = VersionId("helper@1")
"""On disk, and no longer on the device."""


class FakeFeedbackDesk:
    """Accepts every rating, and every answer once."""

    def __init__(self) -> None:
        self.responses: list[StoredResponse] = []
        self.kept: dict[str, Feedback] = {}

    def record(self, response: StoredResponse) -> None:
        self.responses.append(response)

    async def add(self, request: FeedbackRequest) -> Feedback:
        known = {response.response_id: response for response in self.responses}
        if request.response_id not in known:
            raise UnknownObjectError(f"response '{request.response_id}' does not exist")
        response = known[request.response_id]
        messages = self._messages(response, request)
        for kept in self.kept.values():
            if messages is not None and kept.messages == messages:
                raise StateError(f"the same as {kept.feedback_id}", code="duplicate")
        feedback = Feedback(
            feedback_id=f"fb-{len(self.kept)}",
            response_id=response.response_id,
            choice=request.choice,
            adapter=response.adapter,
            version=response.version,
            rating=request.rating,
            messages=messages,
            weight=0.0 if messages is None else 1.0,
            created_at_s=5.5,
            is_deleted=False,
        )
        self.kept[feedback.feedback_id] = feedback
        return feedback

    def _messages(self, response, request):
        if request.answer is None:
            return None
        return (*response.messages, {"role": "assistant", "content": request.answer})

    async def get(self, feedback_id: str) -> Feedback:
        if feedback_id not in self.kept:
            raise UnknownObjectError(f"feedback '{feedback_id}' does not exist")
        return self.kept[feedback_id]

    async def list(
        self, *, adapter: str | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Feedback]:
        found = [item for item in self.kept.values() if adapter in (None, item.adapter)][::-1]
        start = 0 if after is None else found.index(await self.get(after)) + 1
        return Page(tuple(found[start : start + limit]), len(found) > start + limit)

    async def delete(self, feedback_id: str) -> Feedback:
        deleted = replace(await self.get(feedback_id), messages=None, is_deleted=True)
        self.kept[feedback_id] = deleted
        return deleted


class FakeAdapterDesk:
    """Knows one adapter with an old and an active version, and remembers what it was given."""

    def __init__(self) -> None:
        self.pins: set[VersionId] = set()
        self.imported: list[tuple[str, bytes, bytes, bool]] = []
        self.import_paths: list[Path] = []
        self.loaded: dict[str, tuple[str, bool]] = {}
        self.refusal: Exception | None = None
        """Raised by the next import or load."""

    async def history(self, adapter: str, *, limit: int | None = None) -> tuple[Decision, ...]:
        if adapter != "helper":
            raise UnknownAdapterError(f"no adapter '{adapter}'; there are: helper")
        decision = Decision(
            decided_at_s=4.0,
            kind=DecisionKind.PROMOTION,
            adapter="helper",
            version=VERSION,
            previous=OLD_VERSION,
            reason="better",
            numbers={"evidence": 40.0, "candidate_loss": "nan"},
        )
        return (decision,)

    async def published(self) -> tuple[PublishedVersion, ...]:
        return tuple(
            PublishedVersion(
                version=version,
                adapter="helper",
                label=version.partition("@")[2],
                digest="ab" * 32,
                base_digest="cd" * 32,
                rank=8,
                metadata={},
                published_at_s=3.5,
                folder=Path("nowhere"),
            )
            for version in (OLD_VERSION, VERSION)
        )

    async def pinned(self) -> frozenset[VersionId]:
        return frozenset(self.pins)

    async def promote(self, version: str) -> VersionInfo:
        return replace(INFO, version=self._known(version))

    async def rollback(self, adapter: str) -> VersionInfo:
        raise AdapterError(f"'{adapter}' has no earlier version to return to")

    async def pin(self, version: str) -> None:
        self.pins.add(self._known(version))

    async def unpin(self, version: str) -> None:
        self.pins.discard(self._known(version))

    async def export(self, version: str) -> bytes:
        self._known(version)
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as zipped:
            zipped.writestr("adapter_config.json", "{}")
            zipped.writestr("adapter_model.safetensors", b"weights")
        return archive.getvalue()

    async def import_folder(
        self, name: str, config: bytes, weights_path: Path, *, promote: bool
    ) -> VersionInfo:
        self.import_paths.append(weights_path)
        self._refuse()
        self.imported.append((name, config, weights_path.read_bytes(), promote))
        return replace(INFO, version=VersionId(f"{name}@1"), adapter=name, is_active=promote)

    async def load(self, name: str, path: str, *, in_place: bool) -> VersionInfo:
        self._refuse()
        self.loaded[name] = (path, in_place)
        return replace(INFO, version=VersionId(f"{name}@1"), adapter=name)

    async def unload(self, name: str) -> None:
        if name not in self.loaded:
            raise UnknownAdapterError(f"The lora adapter '{name}' cannot be found.")
        del self.loaded[name]

    def _refuse(self) -> None:
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal

    def _known(self, version: str) -> VersionId:
        for known in (OLD_VERSION, VERSION):
            if version == known:
                return known
        raise UnknownAdapterError(f"no version '{version}'; there are: {OLD_VERSION}, {VERSION}")
