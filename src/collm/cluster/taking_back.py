"""Returning to the version before, on all replicas: because somebody asks, or users say so."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from collm.cluster.members import Members
from collm.cluster.spreading import Spread, Spreader, Target
from collm.errors import UnknownAdapterError
from collm.gate.watch import REGRESSION, pooled
from collm.store.front_folder import FrontFolder
from collm.types import BASE, ReplicaSnapshot, RollbackCause, VersionId, WatchState

_log = logging.getLogger(__name__)


class TakingBack:
    """Takes federated versions back; before the first version there is the base.

    A round that is under way, trained from what is taken back, will not be promoted.

    Args:
        members: The live replicas, and what they found on fresh feedback.
        folder: The front's own.
        spreader: Brings versions to replicas.
        is_promoting: By adapter, held while its active version changes; shared with its rounds.
    """

    def __init__(
        self,
        members: Members,
        folder: FrontFolder,
        spreader: Spreader,
        is_promoting: dict[str, asyncio.Lock],
    ) -> None:
        self._members = members
        self._folder = folder
        self._spreader = spreader
        self._is_promoting = is_promoting

    async def roll_back(self, adapter: str) -> Spread:
        """Make the version before the active one active again, on all replicas.

        Raises:
            UnknownAdapterError: No earlier version is held for the adapter.
        """
        async with self._is_promoting.setdefault(adapter, asyncio.Lock()):
            return await self._take_back(adapter, "asked", "asked for", "rolled back", {})

    async def look(self, errors: Mapping[str, float]) -> None:
        """Take back what members together find worse on fresh feedback than the version before.

        Args:
            errors: By adapter that is looked at, the chance that a version is taken back which is
                no worse for any member's users.
        """
        for adapter, error in errors.items():
            lock = self._is_promoting.setdefault(adapter, asyncio.Lock())
            if lock.locked() or self._regression(adapter, error) is None:
                continue
            async with lock:
                if (numbers := self._regression(adapter, error)) is not None:
                    _log.warning("%s: %s", numbers["active"], REGRESSION)
                    await self._take_back(adapter, "regression", REGRESSION, REGRESSION, numbers)

    async def _take_back(
        self, adapter: str, cause: RollbackCause, why: str, told: str, numbers: Mapping[str, Any]
    ) -> Spread:
        # On record before it is served: who comes back catches up by the record.
        target = await asyncio.to_thread(self._record, adapter, why, numbers)
        return await self._spreader.spread(target, told, numbers, cause)

    def _record(self, adapter: str, why: str, numbers: Mapping[str, Any]) -> Target:
        decisions = self._folder.decisions
        active, version = decisions.active().get(adapter), self._before(adapter)
        if active is None or version is None:
            raise UnknownAdapterError(f"adapter {adapter!r} has no earlier federated version")
        if version != BASE:
            decisions.rollback(version, why, numbers)
            return self._spreader.target(version)
        decisions.return_to_base(adapter, why, numbers)
        return replace(self._spreader.target(active), version=BASE)

    def _before(self, adapter: str) -> VersionId | None:
        """Return what a rollback returns to, the base included; ``None`` if there is nothing."""
        decisions = self._folder.decisions
        if (held := decisions.held().get(adapter)) is not None:
            return held
        active = decisions.active().get(adapter)
        return BASE if active is not None and active == decisions.first().get(adapter) else None

    def _regression(self, adapter: str, error: float) -> dict[str, Any] | None:
        """Return the numbers that show that the active version does not hold up, if they do."""
        active, previous = self._folder.decisions.active().get(adapter), self._before(adapter)
        if active is None or previous is None:
            return None
        target = self._spreader.target(active)
        live = {name: one for name, one in self._members.live().items() if target.concerns(one)}
        found = _watches(live, adapter, active, previous)
        if not found:
            return None
        # Who has nothing to say of these two has its stake still.
        silent = [1.0] * (len(live) - len(found))
        evidence = pooled([*(one.capital for one in found.values()), *silent])
        is_finite = all(one.is_finite for one in found.values())
        if is_finite and evidence * error < 1.0:
            return None
        return {
            "active": active,
            "previous": previous,
            "num_samples": sum(one.num_samples for one in found.values()),
            "evidence": evidence,
            "is_finite": is_finite,
            "members": {name: _numbers(one) for name, one in found.items()},
        }


def _watches(
    live: Mapping[str, ReplicaSnapshot], adapter: str, active: VersionId, previous: VersionId
) -> dict[str, WatchState]:
    """Return what members found who compare these two, by member."""
    watched = {name: one.watched[adapter] for name, one in live.items() if adapter in one.watched}
    return {
        name: one
        for name, one in watched.items()
        if (one.active, one.previous) == (active, previous)
    }


def _numbers(watch: WatchState) -> dict[str, Any]:
    return {
        "num_samples": watch.num_samples,
        "active_loss": watch.active_loss,
        "previous_loss": watch.previous_loss,
        "capital": watch.capital,
    }
