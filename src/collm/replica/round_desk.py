"""What a coordinator may ask of this replica, for asyncio."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from collm.errors import (
    AdapterError,
    RoundError,
    StateError,
    UnknownAdapterError,
    UnknownObjectError,
)
from collm.federated.allotment import Allotment
from collm.federated.rounds import GatePlan, GateReport, Progress, RoundPlan, UpdateReport
from collm.lora.state import AdapterState
from collm.lora.terms import Terms
from collm.model.spec import ModelSpec
from collm.replica.archive import Archive
from collm.replica.foreign_folder import read_files
from collm.replica.inbox import CompareVersions, FinishRound, Follow, ReturnToBase, StartRound
from collm.replica.library import Library
from collm.replica.post import Post
from collm.replica.round_board import RoundBoard
from collm.replica.threads import alone
from collm.store.data_folder import DataFolder
from collm.store.names import check_name
from collm.store.versions import PublishedVersion
from collm.training.base_version import BaseVersion
from collm.types import ReplicaSnapshot, RollbackCause, VersionId, VersionInfo


class RoundDesk:
    """Every call may be repeated.

    Args:
        data: Versions and updates on disk.
        library: Reads and publishes versions.
        archive: Writes.
        post: Reaches the step loop.
        board: Shows how far things are.
        terms: What can be served here.
        spec: The base model's shapes.
        look: Returns the latest snapshot.
    """

    def __init__(
        self,
        data: DataFolder,
        library: Library,
        archive: Archive,
        post: Post,
        board: RoundBoard,
        terms: Terms,
        spec: ModelSpec,
        look: Callable[[], ReplicaSnapshot],
    ) -> None:
        self._data = data
        self._library = library
        self._archive = archive
        self._post = post
        self._board = board
        self._terms = terms
        self._spec = spec
        self._look = look

    def state(self) -> ReplicaSnapshot:
        """Return how the replica stands, without waiting for it."""
        return self._look()

    def follow(self, allotment: Allotment) -> None:
        """Give credit, time and sizes of steps as allotted, from the next step on."""
        self._post.send(Follow(allotment))

    # Rounds

    async def start_round(self, plan: RoundPlan) -> None:
        """Train for a round; no effect when it is known already.

        Raises:
            UnknownAdapterError: The version to train from is not here.
            RoundError: This replica does not take part.
        """
        base = await asyncio.to_thread(alone, self._base, plan.base_version)
        reply: Future[None] = Future()
        await self._post.ask(StartRound(plan=plan, base=base, reply=reply), reply)

    def round_progress(self, adapter: str, number: int) -> Progress[UpdateReport]:
        """Return how far a round's training is; raises ``UnknownObjectError``."""
        progress = self._board.round((adapter, number))
        if progress is None:
            raise _unknown("round", adapter, number)
        return progress

    async def finish_round(self, adapter: str, number: int) -> None:
        """Report what there is; raises ``UnknownObjectError``."""
        reply: Future[None] = Future()
        await self._post.ask(FinishRound(adapter=adapter, number=number, reply=reply), reply)

    async def update(self, adapter: str, number: int) -> bytes:
        """Return the safetensors file of a round that was reported.

        Raises:
            UnknownObjectError: The round is not known, or its file is gone.
            StateError: It is not reported yet.
        """
        report = self.round_progress(adapter, number).report
        if report is None:
            raise StateError(f"round {number} of {adapter!r} has no update yet")
        path = self._data.updates.path(adapter, number, report.member)
        try:
            return await asyncio.to_thread(path.read_bytes)
        except FileNotFoundError:
            raise _unknown("update of round", adapter, number) from None

    # Versions

    async def publish(
        self,
        version: str,
        config: bytes,
        weights_path: Path,
        metadata: Mapping[str, str],
    ) -> None:
        """Keep a version under the name that the coordinator gave it; no effect if it is here.

        Args:
            version: ``NAME@LABEL``.
            config: Content of ``adapter_config.json``.
            weights_path: A safetensors file, which may be gone when this returns.
            metadata: Kept beside it.

        Raises:
            AdapterError: A file is malformed or does not fit the base model, or the version exists
                with other content.
        """
        adapter, _, label = version.partition("@")
        check_name("adapter name", adapter)
        check_name("version label", label)
        self._terms.check_name(adapter)
        state = await asyncio.to_thread(
            alone,
            read_files,
            adapter,
            config,
            weights_path,
            self._terms,
            self._spec,
            self._library.base_digest,
        )
        await asyncio.wrap_future(
            self._archive.submit(lambda _: self._library.adopt(adapter, label, state, metadata))
        )

    async def promote(
        self,
        version: str,
        reason: str,
        numbers: Mapping[str, Any],
        cause: RollbackCause | None = None,
    ) -> VersionInfo:
        """Make a version its adapter's active one, by ``cause`` an earlier one.

        Returns when it is.

        Raises:
            UnknownAdapterError: It is not here.
            AdapterError: Something else of the adapter is being promoted.
            StateError: No adapter slot became free in time; says what holds them.
        """
        reply: Future[VersionInfo] = Future()
        message = await asyncio.to_thread(
            alone, self._library.read, VersionId(version), reply, reason, numbers, cause
        )
        return await self._post.ask(message, reply)

    async def return_to_base(
        self,
        adapter: str,
        reason: str,
        numbers: Mapping[str, Any],
        cause: RollbackCause = "asked",
    ) -> None:
        """Serve the bare base model under an adapter's name; returns when that is on disk."""
        reply: Future[None] = Future()
        await self._post.ask(ReturnToBase(adapter, cause, reason, numbers, reply), reply)

    # Comparisons

    async def start_gate(self, plan: GatePlan) -> None:
        """Compare a candidate; no effect when that is known already.

        Raises:
            UnknownAdapterError: One of the versions is not here.
            RoundError: This replica does not judge.
        """
        candidate = await asyncio.to_thread(alone, self._state, plan.adapter, plan.candidate)
        active = None
        if plan.active is not None:
            active = await asyncio.to_thread(alone, self._state, plan.adapter, plan.active)
        reply: Future[None] = Future()
        message = CompareVersions(plan=plan, candidate=candidate, active=active, reply=reply)
        await self._post.ask(message, reply)

    def gate_progress(self, adapter: str, number: int) -> Progress[GateReport]:
        """Return how far a round's comparison is; raises ``UnknownObjectError``."""
        progress = self._board.gate((adapter, number))
        if progress is None:
            raise _unknown("comparison of round", adapter, number)
        return progress

    def _base(self, version: VersionId | None) -> BaseVersion | None:
        if version is None:
            return None
        published, state = self._load(version)
        return BaseVersion.of(version, state, published.metadata)

    def _state(self, adapter: str, version: VersionId) -> AdapterState:
        if not version.startswith(f"{adapter}@"):
            raise RoundError(f"{version} is no version of {adapter!r}")
        return self._load(version)[1]

    def _load(self, version: VersionId) -> tuple[PublishedVersion, AdapterState]:
        try:
            return self._library.load(version)
        except UnknownAdapterError:
            raise
        except AdapterError as error:  # it will not be otherwise later
            raise RoundError(str(error)) from error


def _unknown(what: str, adapter: str, number: int) -> UnknownObjectError:
    return UnknownObjectError(f"{what} {number} of {adapter!r} is not known here")
