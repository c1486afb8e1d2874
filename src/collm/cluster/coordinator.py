"""Learning together: the front's slow loop, which runs rounds and keeps versions consistent."""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from collm.cluster.aggregating import Aggregation, Aggregator, Demand
from collm.cluster.backoff import Backoff
from collm.cluster.members import Members
from collm.cluster.round_config import RoundConfig
from collm.cluster.round_machine import RoundMachine
from collm.cluster.round_path import RoundObserver
from collm.cluster.round_rules import Cast, choose_members, why_left_out
from collm.cluster.spreading import CatchUp, Spread, Spreader
from collm.cluster.taking_back import TakingBack
from collm.cluster.timing import Timing
from collm.errors import CollmError
from collm.federated.rounds import RoundPlan, RoundStatus
from collm.store.decisions import Decision, DecisionKind
from collm.store.front_folder import FrontFolder
from collm.store.rounds import MemberRecord, RoundRecord
from collm.types import ReplicaSnapshot, VersionId

_log = logging.getLogger(__name__)
_LOOK_S = 0.25
"""Time between two looks at who is live, who is behind, and what users' feedback says."""
_RETRY_S = 5.0
"""Time until a step that failed, as on a full disk, is tried again."""
_SHOWN_ROUNDS = 10


def _everybody(_: str) -> Collection[str]:
    """Return nobody in particular."""
    return ()


class Coordinator:
    """Runs the rounds of every configured adapter, side by side.

    It owns no state that a restart would miss: rounds and versions are in the folder, replicas in
    what ``members`` sees. Belongs to one event loop; disk writes happen in threads beside it, so
    that streams do not wait for them.
    """

    def __init__(
        self,
        configs: Sequence[RoundConfig],
        members: Members,
        folder: FrontFolder,
        aggregator: Aggregator,
        timing: Timing,
        *,
        base_model: str,
        demand: Demand,
        spreader: Spreader,
        observers: Sequence[RoundObserver] = (),
        wanted: Callable[[str], Collection[str]] = _everybody,
    ) -> None:
        """Coordinate; nothing happens before ``run``.

        Args:
            configs: One per adapter that is learned together.
            members: The live replicas.
            folder: The front's own; stays its opener's.
            aggregator: Combines updates.
            timing: Where time comes from.
            base_model: The base model's id, for the files of versions.
            demand: How busy members are.
            spreader: Brings versions to replicas.
            observers: Told of each round that ends.
            wanted: Returns who should train an adapter's next round, none for everybody; where
                too few of them are live, everybody is asked.
        """
        self._configs = tuple(configs)
        self._members = members
        self._folder = folder
        self._timing = timing
        self._spreader = spreader
        self._wanted = wanted
        self._is_promoting = {config.adapter: asyncio.Lock() for config in configs}
        self._catch_up = CatchUp(
            members, folder, spreader, timing, is_promoting=self._is_being_promoted
        )
        self._taking_back = TakingBack(members, folder, spreader, self._is_promoting)
        self._machines = {
            config.adapter: RoundMachine(
                config,
                members,
                folder,
                timing,
                aggregation=Aggregation(
                    config, folder, aggregator, base_model=base_model, demand=demand
                ),
                spreader=spreader,
                is_promoting=self._is_promoting[config.adapter],
                observers=observers,
            )
            for config in configs
        }

    async def run(self) -> None:
        """Go on with what a process before this one left, then run rounds until cancelled."""
        await self._abandon_unconfigured()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_up(tasks), name="catch-up")
            tasks.create_task(self._watch(), name="live feedback")
            for config in self._configs:
                tasks.create_task(self._learn(config), name=f"rounds of {config.adapter}")

    async def roll_back(self, adapter: str) -> Spread:
        """Make the version before the active one active again, on all replicas.

        Before the first version there is the base. A round that is under way, trained from what is
        taken back, will not be promoted.

        Raises:
            UnknownAdapterError: No earlier version is held for the adapter.
        """
        return await self._taking_back.roll_back(adapter)

    async def promote(self, version: VersionId) -> Spread:
        """Make a federated version the active one, on all replicas, because somebody asks.

        A round that is under way, trained from another one, will not be promoted.

        Raises:
            UnknownAdapterError: The front has no such version.
        """
        target, decisions = self._spreader.target(version), self._folder.decisions
        async with self._is_promoting.setdefault(target.adapter, asyncio.Lock()):
            # On record before it is served: who comes back catches up by the record.
            await asyncio.to_thread(decisions.promote, version, "asked for", {})
            return await self._spreader.spread(target, "asked for", {})

    def caught_up(self, adapter: str) -> Collection[str] | None:
        """Return the replicas that serve an adapter as they should; ``None`` if nobody must."""
        return self._catch_up.caught_up(adapter)

    def refusals(self, adapter: str, limit: int | None = None) -> tuple[Decision, ...]:
        """Return the decisions against an adapter's candidates, or only the latest; oldest first.

        What is served instead each replica has on record itself, of these it knows nothing.
        """
        refused = self._folder.rounds.ended(adapter, RoundStatus.REFUSED, limit)
        return tuple(_refusal(record) for record in refused)

    def status(self) -> dict[str, Any]:
        """Return how learning together stands, as plain JSON values: an entry per adapter."""
        active = self._folder.decisions.active()
        names = sorted({*(config.adapter for config in self._configs), *active})
        return {name: self._adapter_status(name, active.get(name)) for name in names}

    def _is_being_promoted(self, adapter: str) -> bool:
        lock = self._is_promoting.get(adapter)
        return lock is not None and lock.locked()

    async def _keep_up(self, tasks: asyncio.TaskGroup) -> None:
        async def look() -> None:
            self._catch_up.look(tasks)

        await self._repeat(look, "bringing replicas up to date")

    async def _watch(self) -> None:
        errors = {config.adapter: config.gate.watch_error for config in self._configs}
        await self._repeat(lambda: self._taking_back.look(errors), "looking at live feedback")

    async def _repeat(self, look: Callable[[], Awaitable[None]], what: str) -> None:
        while True:
            try:
                await look()
            except (CollmError, OSError, sqlite3.Error):
                _log.exception("%s failed", what)
            await self._timing.sleep(_LOOK_S)

    async def _learn(self, config: RoundConfig) -> None:
        backoff = Backoff()
        while True:
            try:
                record = self._folder.rounds.resume().get(config.adapter)
                if record is None:
                    if self._has_ended(config):
                        _log.info("%s: all its rounds are done", config.adapter)
                        return
                    record = await self._plan(config)
                if record is not None:
                    record = await self._machines[config.adapter].run(record)
                    await self._timing.sleep(config.interval_s + _wait_after(record, backoff))
                else:
                    await self._timing.sleep(_LOOK_S)
            except (CollmError, OSError, sqlite3.Error):
                _log.exception("%s: a round's step failed; it is tried again", config.adapter)
                await self._timing.sleep(_RETRY_S)

    def _has_ended(self, config: RoundConfig) -> bool:
        counted = (RoundStatus.DONE, RoundStatus.REFUSED)
        num_rounds = self._folder.rounds.num_ended(config.adapter, counted)
        return config.max_rounds is not None and num_rounds >= config.max_rounds

    async def _plan(self, config: RoundConfig) -> RoundRecord | None:
        """Put the next round on record; return ``None`` while too few replicas are there."""
        base_version = self._folder.decisions.active().get(config.adapter)
        live = self._members.live()
        cast = self._cast(config, base_version, live)
        if cast is None:
            return None
        plan = RoundPlan(
            adapter=config.adapter,
            round=self._folder.rounds.next_round(config.adapter),
            members=cast.members,
            base_version=base_version,
            max_tokens=config.tokens_per_round,
            deadline_s=config.deadline_s,
        )
        return await asyncio.to_thread(
            self._folder.rounds.start,
            plan.adapter,
            plan.round,
            RoundStatus.PLANNED,
            plan=plan.to_json(),
            base_digest=cast.base_digest,
            members=plan.members,
            results={"planning": {"left_out": why_left_out(live, cast)}},
        )

    def _cast(
        self,
        config: RoundConfig,
        base_version: VersionId | None,
        live: Mapping[str, ReplicaSnapshot],
    ) -> Cast | None:
        base = None if base_version is None else self._folder.versions.get(base_version)
        digest = None if base is None else base.base_digest
        wanted = self._wanted(config.adapter)
        chosen = {name: snapshot for name, snapshot in live.items() if name in wanted}
        return choose_members(chosen, digest, config.min_members) or choose_members(
            live, digest, config.min_members
        )

    async def _abandon_unconfigured(self) -> None:
        for adapter, record in self._folder.rounds.resume().items():
            if adapter not in self._machines:
                reason = "the adapter is no longer learned together"
                await asyncio.to_thread(
                    self._folder.rounds.end, record, RoundStatus.ABANDONED, reason
                )

    def _adapter_status(self, adapter: str, active: VersionId | None) -> dict[str, Any]:
        journal = self._folder.rounds
        records = journal.latest(adapter, _SHOWN_ROUNDS)
        is_between = not records or records[0].ended_at_s is not None
        return {
            "active": active,
            "pause": self._why_paused(adapter, active) if is_between else None,
            "rounds": [
                _round_status(record, journal.members(adapter, record.round)) for record in records
            ],
        }

    def _why_paused(self, adapter: str, active: VersionId | None) -> str | None:
        """Return what keeps an adapter's next round from beginning, for people."""
        config = next((one for one in self._configs if one.adapter == adapter), None)
        if config is None:
            return "it is not learned together any more"
        if self._has_ended(config):
            return f"all {config.max_rounds} rounds are done"
        live = self._members.live()
        if self._cast(config, active, live) is None:
            return (
                f"a round needs {config.min_members} replicas of one base model; {len(live)} answer"
            )
        return None


def _wait_after(record: RoundRecord, backoff: Backoff) -> float:
    """Return how much longer to wait after a round: what failed once may fail again at once."""
    if record.status != RoundStatus.ABANDONED or record.ended_at_s is None:
        return 0.0
    return backoff.after(max(0.0, record.ended_at_s - record.started_at_s))


def _refusal(record: RoundRecord) -> Decision:
    assert record.ended_at_s is not None
    verdict = (record.reason or "").replace("_", " ")
    return Decision(
        decided_at_s=record.ended_at_s,
        kind=DecisionKind.REFUSAL,
        adapter=record.adapter,
        version=record.candidate,
        previous=record.plan["base_version"],
        reason=f"{verdict} in round {record.round}",
        numbers=record.results["gate"],
    )


def _round_status(record: RoundRecord, parts: Sequence[MemberRecord]) -> dict[str, Any]:
    return {
        "round": record.round,
        "status": record.status,
        "reason": record.reason,
        "base_version": record.plan["base_version"],
        "candidate": record.candidate,
        "started_at_s": record.started_at_s,
        "ended_at_s": record.ended_at_s,
        "results": dict(record.results),
        "members": [
            {
                "member": part.member,
                "outcome": part.outcome.value,
                "reason": part.reason,
                "report": part.report,
                "used_in": part.used_in,
            }
            for part in parts
        ],
    }
