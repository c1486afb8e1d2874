"""Making replicas serve a version: all at once after a round, and later whoever comes back."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from collm.cluster.client import ADAPTER_CONFIG, ADAPTER_WEIGHTS, AdapterFiles, MemberControl
from collm.cluster.members import Members
from collm.cluster.round_rules import is_behind
from collm.cluster.timing import Timing
from collm.errors import CollmError, StateError, UnknownObjectError
from collm.store.front_folder import FrontFolder
from collm.store.versions import PublishedVersion
from collm.types import BASE, ReplicaSnapshot, RollbackCause, VersionId

_log = logging.getLogger(__name__)
_WITHIN_S = 2.0
"""Time that a promotion has to reach every live replica before it is called partial."""
_BUSY_S = 0.1
_RETRY_S = 2.0
"""Time until a replica that could not be brought up to date is tried again."""
_BRING_S = 60.0
"""Longest that one try may take; a replica that needs longer is asked anew."""


@dataclass(frozen=True, slots=True)
class Target:
    """What an adapter's name shall mean on every replica."""

    adapter: str
    version: VersionId
    """``BASE`` when the first version was taken back."""
    base_digest: str | None
    """The base model whose replicas are meant; ``None`` for all, which have the base anyway."""

    def concerns(self, snapshot: ReplicaSnapshot) -> bool:
        """Return whether this is for a replica."""
        return self.base_digest is None or snapshot.base_digest == self.base_digest


@dataclass(frozen=True, slots=True)
class Spread:
    """How far a promotion got in its time."""

    version: VersionId
    """What was promoted, or returned to; ``BASE`` for the bare base model."""
    reached: tuple[str, ...]
    """Replicas that serve the version."""
    missed: Mapping[str, str]
    """Why others do not, by replica; they catch up later."""

    @property
    def is_partial(self) -> bool:
        """Whether a live replica does not serve the version yet."""
        return bool(self.missed) or not self.reached

    def numbers(self) -> dict[str, Any]:
        """Return what the journal records, as plain JSON values."""
        return {
            "reached": list(self.reached),
            "missed": dict(self.missed),
            "is_partial": self.is_partial,
        }


class Spreader:
    """Brings versions to replicas; every step may be repeated."""

    def __init__(
        self,
        members: Members,
        folder: FrontFolder,
        timing: Timing,
        *,
        within_s: float = _WITHIN_S,
    ) -> None:
        """Bring the versions in ``folder`` to ``members``, in ``within_s`` seconds at most."""
        self._members = members
        self._folder = folder
        self._timing = timing
        self._within_s = within_s

    def target(self, version: VersionId) -> Target:
        """Return what makes a version of the folder the one that is served."""
        published = self._folder.versions.get(version)
        return Target(published.adapter, version, published.base_digest)

    async def spread(
        self,
        target: Target,
        reason: str,
        numbers: Mapping[str, Any],
        cause: RollbackCause | None = None,
    ) -> Spread:
        """Bring a target, by ``cause`` an earlier version, to every live replica it is for."""
        tasks = {
            replica_id: asyncio.create_task(
                self.bring(replica_id, target, reason, numbers, cause=cause)
            )
            for replica_id, snapshot in sorted(self._members.live().items())
            if target.concerns(snapshot)
        }
        if tasks:
            try:
                await asyncio.wait(tasks.values(), timeout=self._within_s)
            finally:
                late = {replica_id for replica_id, task in tasks.items() if task.cancel()}
                await asyncio.gather(*tasks.values(), return_exceptions=True)
        missed = {}
        for replica_id, task in tasks.items():
            if replica_id in late or task.cancelled():
                missed[replica_id] = f"it did not promote within {self._within_s:g} s"
            elif (error := task.exception()) is not None:
                missed[replica_id] = str(error)
        reached = tuple(replica_id for replica_id in tasks if replica_id not in missed)
        names = ", ".join(reached) or "none"
        _log.info(
            "%s: %s is served by %s; missed: %s", target.adapter, target.version, names, missed
        )
        return Spread(target.version, reached, missed)

    async def bring(
        self,
        replica_id: str,
        target: Target,
        reason: str,
        numbers: Mapping[str, Any],
        is_wanted: Callable[[], bool] = lambda: True,
        cause: RollbackCause | None = None,
    ) -> None:
        """Make one replica serve a target, sending a version that the replica does not have.

        A replica that cannot do it yet, such as in the middle of another promotion, is asked until
        it can, or until the target is not wanted any more: give this a time limit.

        Raises:
            CollmError: It does not answer, or refuses.
        """
        control, version = self._members.control(replica_id), target.version
        if version == BASE:
            await control.return_to_base(target.adapter, reason, numbers, cause or "asked")
            return
        is_sent = False
        while is_wanted():
            try:
                await control.promote(version, reason, numbers, cause)
                return
            except UnknownObjectError:
                if is_sent:
                    raise
                await self.publish(control, version)
                is_sent = True
            except StateError as error:
                _log.info("%s cannot promote %s yet: %s", replica_id, version, error)
                await self._timing.sleep(_BUSY_S)

    async def publish(self, control: MemberControl, version: VersionId) -> None:
        """Send a version to a replica, without promoting it."""
        published = self._folder.versions.get(version)
        files = await asyncio.to_thread(_read, published)
        await control.publish(version, files, published.metadata)


class CatchUp:
    """Brings replicas that come back, or that a promotion missed, to the active versions.

    A replica is brought to a version once. What is done with it there afterwards, such as a
    rollback on that replica alone, stays until it comes back anew or another version is promoted.
    """

    def __init__(
        self,
        members: Members,
        folder: FrontFolder,
        spreader: Spreader,
        timing: Timing,
        *,
        is_promoting: Callable[[str], bool],
    ) -> None:
        """Watch ``members``, except for adapters whose active version ``is_promoting`` now."""
        self._is_promoting = is_promoting
        self._members = members
        self._folder = folder
        self._spreader = spreader
        self._timing = timing
        self._settled: set[tuple[str, Target]] = set()
        self._caught_up: dict[str, set[str]] = {}
        self._busy: set[str] = set()
        self._not_before_s: dict[str, float] = {}

    def caught_up(self, adapter: str) -> Collection[str] | None:
        """Return who need not be brought to an adapter's active version any more.

        ``None`` while there is no such version, or it changes. Who has just come back is not among
        them before it was looked at.
        """
        return self._caught_up.get(adapter)

    def look(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to bring everyone who is behind up to date, in ``tasks``, and return at once.

        Nobody waits for another replica; who cannot be brought now is tried again later.
        """
        live, targets = self._members.live(), self._targets()
        wanted = {
            (replica_id, target)
            for target in targets
            for replica_id, snapshot in live.items()
            if target.concerns(snapshot)
        }
        self._settled &= wanted  # who went away is looked at anew when it is back
        now_s = self._timing.clock.now_s()
        for replica_id, target in sorted(wanted - self._settled, key=_order):
            active = live[replica_id].active.get(target.adapter)
            if not is_behind(active, target.version):
                self._settled.add((replica_id, target))
                continue
            is_due = now_s >= self._not_before_s.get(replica_id, now_s)
            if is_due and replica_id not in self._busy:
                self._busy.add(replica_id)
                tasks.create_task(self._bring(replica_id, target))
        self._caught_up = {
            target.adapter: {
                replica_id
                for replica_id, snapshot in live.items()
                if (replica_id, target) in self._settled or not target.concerns(snapshot)
            }
            for target in targets
        }

    def _targets(self) -> list[Target]:
        """Return what replicas shall serve, but for adapters whose version changes right now."""
        decisions, spreader = self._folder.decisions, self._spreader
        targets = [spreader.target(version) for version in decisions.active().values()]
        targets += [Target(adapter, BASE, None) for adapter in decisions.taken_back()]
        return [target for target in targets if not self._is_promoting(target.adapter)]

    async def _bring(self, replica_id: str, target: Target) -> None:
        version = target.version

        def is_wanted() -> bool:
            return target in self._targets()

        try:
            # By its numbers the replica knows whether it is to watch what it serves then.
            numbers = self._folder.decisions.standing()[target.adapter].numbers
            async with asyncio.timeout(_BRING_S):
                await self._spreader.bring(replica_id, target, "caught up", numbers, is_wanted)
            if is_wanted():
                _log.info("%s: %s caught up with %s", target.adapter, replica_id, version)
                self._settled.add((replica_id, target))
                self._caught_up.setdefault(target.adapter, set()).add(replica_id)
        except (CollmError, OSError, sqlite3.Error) as error:  # a timeout is an OSError
            _log.warning("%s cannot catch up with %s yet: %s", replica_id, version, error)
            self._not_before_s[replica_id] = self._timing.clock.now_s() + _RETRY_S
        finally:
            self._busy.discard(replica_id)


def _order(wanted: tuple[str, Target]) -> tuple[str, str]:
    replica_id, target = wanted
    return replica_id, target.adapter


def _read(published: PublishedVersion) -> AdapterFiles:
    return AdapterFiles(
        config=(published.folder / ADAPTER_CONFIG).read_bytes(),
        weights=(published.folder / ADAPTER_WEIGHTS).read_bytes(),
    )
