"""Adapter versions between disk, device and outside."""

import asyncio
import io
import zipfile
from concurrent.futures import Future
from pathlib import Path
from weakref import WeakValueDictionary

from collm.errors import RequestError, UnknownAdapterError
from collm.lora.peft_folder import PEFT_CONFIG, PEFT_WEIGHTS
from collm.lora.state import AdapterState
from collm.lora.terms import Terms
from collm.model.spec import ModelSpec
from collm.replica.archive import Archive
from collm.replica.board import Board
from collm.replica.foreign_folder import (
    copy_folder,
    find_folder,
    max_weights_bytes,
    read_files,
    read_filled,
)
from collm.replica.inbox import Keep, Published, Release, Rollback, Unload
from collm.replica.library import Library
from collm.replica.post import Post
from collm.replica.threads import alone
from collm.store.data_folder import DataFolder
from collm.store.decisions import Decision
from collm.store.names import check_name
from collm.store.versions import PublishedVersion
from collm.types import VersionId, VersionInfo


class AdapterDesk:
    """What operators do with versions, for asyncio; what comes from outside is checked aside.

    Imports, loads and unloads of one adapter take turns.

    Args:
        data: The versions on disk and the decisions about them.
        library: Reads and publishes versions.
        archive: Writes.
        post: Reaches the step loop.
        board: Shows what is loaded.
        terms: What can be served here.
        spec: The base model's shapes.
        import_root: Folder that ``load`` may read below; ``None`` lets it read nothing.
    """

    def __init__(
        self,
        data: DataFolder,
        library: Library,
        archive: Archive,
        post: Post,
        board: Board,
        terms: Terms,
        spec: ModelSpec,
        import_root: str | None,
    ) -> None:
        self._data = data
        self._library = library
        self._archive = archive
        self._post = post
        self._board = board
        self._terms = terms
        self._spec = spec
        self._import_root = import_root
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # What there is

    async def history(self, adapter: str, *, limit: int | None = None) -> tuple[Decision, ...]:
        """Return the decisions about an adapter, or only the latest ``limit``; oldest first.

        Raises:
            UnknownAdapterError: There is no such adapter.
        """
        decisions = await asyncio.to_thread(self._data.decisions.history, adapter, limit)
        if not decisions and adapter not in self._names():
            raise self._unknown(adapter)
        return decisions

    async def published(self) -> tuple[PublishedVersion, ...]:
        """Return the versions on disk, in order of publication."""
        return await asyncio.to_thread(self._data.versions.published)

    async def pinned(self) -> frozenset[VersionId]:
        """Return the versions that an operator pinned."""
        return frozenset(await asyncio.to_thread(self._data.pins.all))

    async def export(self, version: str) -> bytes:
        """Return a zip archive of the version's PEFT folder; raises ``UnknownAdapterError``."""
        return await asyncio.to_thread(alone, self._zip, VersionId(version))

    # What is served

    async def promote(self, version: str) -> VersionInfo:
        """Make a version on disk its adapter's active one.

        Raises:
            AdapterError: It is unknown, or something newer overtook it.
            StateError: No adapter slot became free in time; says what holds them.
        """
        reply: Future[VersionInfo] = Future()
        message = await asyncio.to_thread(alone, self._library.read, VersionId(version), reply)
        return await self._post.ask(message, reply)

    async def rollback(self, adapter: str) -> VersionInfo:
        """Return an adapter to the version before, or ``BASE``; raises ``AdapterError``."""
        if adapter not in self._names():
            raise self._unknown(adapter)
        reply: Future[VersionInfo] = Future()
        return await self._post.ask(Rollback(adapter, reply), reply)

    async def pin(self, version: str) -> None:
        """Keep a version on disk and on the device.

        Raises:
            AdapterError: It is unknown, or cannot be served.
            StateError: No adapter slot is free; says what holds them.
        """
        reply: Future[VersionInfo] = Future()
        message = await asyncio.to_thread(alone, self._library.read, VersionId(version), reply)
        await self._post.ask(Keep(message), reply)

    async def unpin(self, version: str) -> None:
        """Undo ``pin``; no effect on one that is not pinned; raises ``UnknownAdapterError``."""
        await asyncio.to_thread(self._data.versions.get, VersionId(version))
        reply: Future[None] = Future()
        await self._post.ask(Release(VersionId(version), reply), reply)

    async def unload(self, name: str) -> None:
        """Stop serving a name to new requests.

        Raises:
            UnknownAdapterError: It is not served.
            StateError: A job trains it.
        """
        async with self._turn(name):
            reply: Future[None] = Future()
            await self._post.ask(Unload(name, reply), reply)

    # What comes from outside

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
            AdapterError: A file is malformed, or does not fit the base model.
            StateError: No adapter slot became free in time; says what holds them.
        """
        self._check_name(name)

        async with self._turn(name):
            state = await asyncio.to_thread(
                alone, lambda: read_files(name, config, weights_path, *self._conditions())
            )
            published = await self._publish(name, state)
            if promote:
                return await self._serve(published, state, "imported")
        return VersionInfo(
            version=published.version,
            adapter=name,
            digest=published.digest,
            rank=published.rank,
            slot=None,
            num_pins=0,
            is_active=False,
            metadata=dict(published.metadata),
        )

    async def load(self, name: str, path: str, *, in_place: bool) -> VersionInfo:
        """Serve a PEFT folder of this machine under a name.

        Args:
            name: The name that requests use.
            path: A folder below the one that the configuration allows, or relative to it.
            in_place: Whether a name that is loaded already takes the new content.

        Raises:
            RequestError: The name is taken, or the path is not allowed.
            UnknownAdapterError: There is no folder at ``path``.
            AdapterError: A file is malformed, or does not fit the base model.
            StateError: No adapter slot became free in time; says what holds them.
        """
        self._check_name(name)
        folder = await asyncio.to_thread(find_folder, self._import_root, path)

        def fill(copy: Path) -> None:
            copy_folder(folder, copy, max_weights_bytes(self._terms.layout))

        async with self._turn(name):
            if not in_place and name in self._board.view.names:
                raise RequestError(
                    f"The lora adapter '{name}' has already been loaded. If you want to load the "
                    "adapter in place, set 'load_inplace' to True.",
                    param="lora_name",
                    code="adapter_loaded",
                )
            state = await asyncio.to_thread(
                alone, lambda: read_filled(name, fill, *self._conditions())
            )
            digest = await asyncio.to_thread(alone, state.digest)
            for info in self._board.view.versions:
                if info.adapter == name and info.is_active and info.digest == digest:
                    return info
            return await self._serve(await self._publish(name, state), state, "loaded")

    def _check_name(self, name: str) -> None:
        check_name("adapter name", name)
        self._terms.check_name(name)

    def _turn(self, name: str) -> asyncio.Lock:
        # Held by those who wait for it alone, so that names do not pile up.
        return self._turns.setdefault(name, asyncio.Lock())

    def _conditions(self) -> tuple[Terms, ModelSpec, str]:
        """Return what decides whether an adapter from outside is taken."""
        return self._terms, self._spec, self._library.base_digest

    async def _publish(self, name: str, state: AdapterState) -> PublishedVersion:
        metadata = {"origin": "import"}
        return await asyncio.wrap_future(
            self._archive.submit(lambda _: self._library.publish(name, state, metadata))
        )

    async def _serve(
        self, published: PublishedVersion, state: AdapterState, reason: str
    ) -> VersionInfo:
        reply: Future[VersionInfo] = Future()
        message = Published.foreign(published, state, reason, reply)
        return await self._post.ask(message, reply)

    def _zip(self, version: VersionId) -> bytes:
        folder = self._data.versions.get(version).folder
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
            for name in (PEFT_CONFIG, PEFT_WEIGHTS):
                try:
                    archive.write(folder / name, name)
                except FileNotFoundError:
                    raise UnknownAdapterError(f"version {version!r} was just removed") from None
        return content.getvalue()

    def _names(self) -> frozenset[str]:
        """Return the adapters that there are: loaded, on disk, or learned and without a version."""
        view = self._board.view
        named = {name for name in view.names if "@" not in name} - {self._terms.base_model}
        loaded = {info.adapter for info in view.versions}
        published = {item.adapter for item in self._data.versions.published()}
        return frozenset(named | loaded | published)

    def _unknown(self, adapter: str) -> UnknownAdapterError:
        known = ", ".join(sorted(self._names())) or "none"
        return UnknownAdapterError(f"adapter {adapter!r} does not exist; available: {known}")
