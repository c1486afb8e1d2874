"""From a round's updates to a candidate version, by way of a child process that may use torch."""

import asyncio
import dataclasses
import json
import logging
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from collm.cluster.client import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from collm.cluster.round_config import RoundConfig
from collm.cluster.round_rules import MAX_STALE_ROUNDS, newest_updates, num_needed
from collm.errors import RoundError
from collm.federated.aggregate_plan import (
    EXIT_NO_QUORUM,
    REPORT_FILE,
    AggregatePlan,
    AggregateReport,
    StrategyName,
    UpdateFile,
)
from collm.federated.rounds import RoundPlan, RoundStatus, UpdateReport
from collm.store.front_folder import FrontFolder
from collm.store.rounds import MemberOutcome, MemberRecord
from collm.store.versions import PublishedVersion
from collm.types import VersionId

_log = logging.getLogger(__name__)
_AGGREGATE_S = 600.0
"""Longest that aggregating may take; two members' rank 16 take a second or two."""
_MAX_COMPLAINT = 500

Demand = Callable[[str, str], float]
"""Requests that a replica has lately answered with an adapter: (adapter, replica id) → count."""


class Aggregator(Protocol):
    """Carries out an aggregate plan."""

    async def aggregate(self, plan: AggregatePlan) -> AggregateReport:
        """Write the plan's output folder; raises ``RoundError`` when that cannot be done."""
        ...


class ChildAggregator:
    """Aggregates in a process of its own, so that this one needs no torch."""

    async def aggregate(self, plan: AggregatePlan) -> AggregateReport:
        """Run the process to its end, or end it when this call is cancelled.

        Raises:
            RoundError: It failed, or took too long.
        """
        path = plan.output.with_name("plan.json")
        path.write_text(json.dumps(plan.to_json()), encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "collm.federated.aggregate", str(path)),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_AGGREGATE_S):
                _, complaint = await process.communicate()
        except TimeoutError as error:
            raise RoundError(f"aggregating took longer than {_AGGREGATE_S:.0f} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode not in (0, EXIT_NO_QUORUM):
            text = complaint.decode(errors="replace").strip()[-_MAX_COMPLAINT:]
            raise RoundError(f"aggregating ended with {process.returncode}: {text}")
        return read_report(plan.output)


class Aggregation:
    """Makes the candidate of a round; done again after a kill, it finds what it made before."""

    def __init__(
        self,
        config: RoundConfig,
        folder: FrontFolder,
        aggregator: Aggregator,
        *,
        base_model: str,
        demand: Demand,
    ) -> None:
        """Aggregate what is in ``folder``.

        Args:
            config: How.
            folder: Holds updates, and gets the version.
            aggregator: Does it.
            base_model: The base model's id, for the version's files.
            demand: How busy members are, so that busy ones count.
        """
        self._config = config
        self._folder = folder
        self._aggregator = aggregator
        self._base_model = base_model
        self._demand = demand

    async def run(
        self, plan: RoundPlan, base_digest: str
    ) -> tuple[PublishedVersion | None, AggregateReport, tuple[MemberRecord, ...]]:
        """Return the candidate, ``None`` without a quorum; the report; and all parts considered.

        Raises:
            RoundError: Nothing could be aggregated.
        """
        parts = self._parts(plan)
        updates, gone = self._updates(plan, parts)
        published = self._find(plan)
        if published is not None:
            return published, _with(gone, read_report(published.folder)), parts
        work = await asyncio.to_thread(
            self._folder.updates.new_work_folder, plan.adapter, plan.round
        )
        order = AggregatePlan(
            strategy=StrategyName(self._config.strategy),
            rank=self._config.rank,
            min_updates=self._num_needed(plan),
            base_model=self._base_model,
            base=None if plan.base_version is None else self._weights(plan.base_version),
            updates=tuple(updates),
            output=work / "output",
            server_rate=self._config.server_rate,
        )
        report = _with(gone, await self._aggregator.aggregate(order))
        for member, reason in report.refused.items():
            _log.warning("%s round %d leaves out %s: %s", plan.adapter, plan.round, member, reason)
        if not report.is_aggregated:
            return None, report, parts
        published = await asyncio.to_thread(self._publish, plan, report, base_digest, order.output)
        await asyncio.to_thread(shutil.rmtree, work)
        return published, report, parts

    def _parts(self, plan: RoundPlan) -> tuple[MemberRecord, ...]:
        rounds = range(plan.round - MAX_STALE_ROUNDS, plan.round + 1)
        return newest_updates(self._folder.rounds.reported(plan.adapter, rounds))

    def _find(self, plan: RoundPlan) -> PublishedVersion | None:
        """Return the candidate that an attempt made which was killed before that was on record."""
        for version in self._folder.versions.published(plan.adapter):
            if version.metadata.get("round") == str(plan.round):
                return version
        return None

    def _num_needed(self, plan: RoundPlan) -> int:
        parts = self._folder.rounds.members(plan.adapter, plan.round)
        num_asked = sum(part.outcome is not MemberOutcome.DECLINED for part in parts)
        return num_needed(num_asked, self._config.quorum_share)

    def _updates(
        self, plan: RoundPlan, parts: Sequence[MemberRecord]
    ) -> tuple[list[UpdateFile], dict[str, str]]:
        """Return the files to aggregate; and by member, why one cannot be."""
        updates, gone = [], {}
        for part in parts:
            report = UpdateReport.from_json(part.report)
            is_fresh = report.base_version == plan.base_version
            base = report.base_version
            if not is_fresh and base is not None and not self._is_kept(base):
                gone[part.member] = f"it was trained from {base}, which is not kept here"
                continue
            updates.append(
                UpdateFile(
                    member=part.member,
                    path=self._folder.updates.path(part.adapter, part.round, part.member),
                    digest=report.digest,
                    num_examples=report.num_examples,
                    demand=self._demand(part.adapter, part.member),
                    staleness=0 if is_fresh else self._staleness(plan, part),
                    trained_from=None if is_fresh or base is None else self._weights(base),
                )
            )
        return updates, gone

    def _staleness(self, plan: RoundPlan, part: MemberRecord) -> int:
        """Return how many promotions there were since the part's round; at least one."""
        rounds = self._folder.rounds.latest(plan.adapter, plan.round - part.round + 1)
        since = [item for item in rounds if part.round <= item.round < plan.round]
        return max(1, sum(item.status == RoundStatus.DONE for item in since))

    def _is_kept(self, version: VersionId) -> bool:
        adapter = version.partition("@")[0]
        return any(version == it.version for it in self._folder.versions.published(adapter))

    def _weights(self, version: VersionId) -> Path:
        return self._folder.versions.get(version).folder / ADAPTER_WEIGHTS

    def _publish(
        self, plan: RoundPlan, report: AggregateReport, base_digest: str, output: Path
    ) -> PublishedVersion:
        assert report.digest is not None

        def write(folder: Path) -> None:
            for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS, REPORT_FILE):
                shutil.copyfile(output / name, folder / name)

        versions = self._folder.versions
        return versions.publish(
            plan.adapter,
            str(versions.next_number(plan.adapter)),
            digest=report.digest,
            base_digest=base_digest,
            rank=self._config.rank,
            metadata={
                "round": str(plan.round),
                "strategy": self._config.strategy,
                "members": ", ".join(sorted(report.weights)),
            },
            write=write,
        )


def _with(gone: Mapping[str, str], report: AggregateReport) -> AggregateReport:
    return dataclasses.replace(report, refused={**report.refused, **gone})


def read_report(folder: Path) -> AggregateReport:
    """Return the report in an output folder; raises ``RoundError`` when there is no whole one."""
    try:
        value = json.loads((folder / REPORT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RoundError(f"{folder} holds no report: {error}") from error
    return AggregateReport.from_json(value)
