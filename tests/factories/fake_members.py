"""Replicas as the coordinator sees them, without HTTP, models or time."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from collm.clock import ManualClock
from collm.cluster.client import ADAPTER_CONFIG, ADAPTER_WEIGHTS, AdapterFiles
from collm.cluster.members import Members
from collm.cluster.timing import Timing
from collm.errors import CollmError, RoundError, UnknownObjectError, UnreachableError
from collm.federated.aggregate_plan import REPORT_FILE, AggregatePlan, AggregateReport
from collm.federated.allotment import Allotment
from collm.federated.rounds import (
    GatePlan,
    GateReport,
    Progress,
    RoundPlan,
    SliceSums,
    UpdateReport,
)
from collm.types import (
    BASE,
    ReplicaSnapshot,
    RollbackCause,
    StepCoefficients,
    VersionId,
    WatchState,
)

DIGEST = "d" * 64
NAN = b"nan"
"""An update that the fake aggregator refuses."""


def snapshot(replica_id: str, **changes: Any) -> ReplicaSnapshot:
    """Return a plausible snapshot."""
    values: dict[str, Any] = {
        "replica_id": replica_id,
        "url": f"http://{replica_id}",
        "taken_at_s": 0.0,
        "num_running": 0,
        "num_waiting": 0,
        "queued_prefill_tokens": 0,
        "num_context_tokens": 0,
        "num_free_blocks": 100,
        "block_size": 16,
        "credit_share": 0.0,
        "bytes_per_token": 4.0,
        "step_coefficients": StepCoefficients(
            constant_s=0.02, decode_s=0.001, prefill_s=0.001, context_s=0.0, adapter_s=0.001
        ),
        "ttft_s": 1.0,
        "tpot_s": 0.1,
        "names": ("base",),
        "active": {},
        "quality": {},
        "quality_noise": {},
        "max_model_len": 2048,
        "is_draining": False,
        "base_digest": DIGEST,
    }
    return ReplicaSnapshot(**{**values, **changes})


@dataclass
class FakeMember:
    """A replica that trains by being asked how far it is."""

    name: str
    content: bytes = b"factors"
    num_polls: int = 2
    """How often it is asked before it has finished by itself."""
    increase: float = -0.5
    """Of the loss under any candidate, in nats per token."""
    is_live: bool = True
    is_deaf: bool = False
    """Whether being told to finish changes nothing."""
    refusal: CollmError | None = None
    """Raised when it is asked to train."""
    failure: str | None = None
    """Why its training fails."""
    report_changes: Mapping[str, Any] = field(default_factory=dict)
    before_promote: Callable[[], Awaitable[object]] | None = None
    base_digest: str = DIGEST
    plans: list[RoundPlan] = field(default_factory=list)
    gates: dict[int, GatePlan] = field(default_factory=dict)
    versions: dict[VersionId, AdapterFiles] = field(default_factory=dict)
    active: dict[str, VersionId] = field(default_factory=dict)
    allotments: list[Allotment] = field(default_factory=list)
    promotions: list[VersionId] = field(default_factory=list)
    reasons: list[tuple[VersionId, str, Mapping[str, Any]]] = field(default_factory=list)
    causes: list[RollbackCause | None] = field(default_factory=list)
    """Why it was told to serve what, in order."""
    watched: dict[str, WatchState] = field(default_factory=dict)
    _polls: dict[int, int] = field(default_factory=dict)
    _finished: set[int] = field(default_factory=set)

    def restart(self) -> None:
        """Lose what is not on a replica's disk."""
        self._polls.clear()
        self._finished.clear()
        self.gates.clear()

    async def follow(self, allotment: Allotment) -> None:
        """Keep the allotment, and say so in the snapshot."""
        self._answer()
        self.allotments.append(allotment)

    async def start_round(self, plan: RoundPlan) -> None:
        """Begin to count polls."""
        self._answer()
        if self.refusal is not None:
            raise self.refusal
        if plan.base_version is not None and plan.base_version not in self.versions:
            raise UnknownObjectError(f"no version {plan.base_version}")
        if plan.round not in self._polls:
            self.plans.append(plan)
            self._polls[plan.round] = 0

    async def round_report(self, adapter: str, number: int) -> Progress[UpdateReport]:
        """Count a poll; be finished after enough of them."""
        self._answer()
        if number not in self._polls:
            raise UnknownObjectError(f"no round {number}")
        if self.failure is not None:
            return Progress(error=self.failure)
        self._polls[number] += 1
        is_complete = self._polls[number] > self.num_polls
        if not is_complete and number not in self._finished:
            return Progress()
        plan = next(plan for plan in self.plans if plan.round == number)
        values: dict[str, Any] = {
            "adapter": adapter,
            "round": number,
            "member": self.name,
            "base_version": plan.base_version,
            "num_examples": 10,
            "num_tokens": 100,
            "loss_before": 2.0,
            "loss_after": 1.5,
            "is_complete": is_complete,
            "digest": hashlib.sha256(self.content).hexdigest(),
        }
        return Progress(report=UpdateReport(**{**values, **self.report_changes}))

    async def finish_round(self, adapter: str, number: int) -> None:
        """Finish at the next poll."""
        self._answer()
        if not self.is_deaf:
            self._finished.add(number)

    async def update(self, adapter: str, number: int) -> bytes:
        """Return the content."""
        self._answer()
        return self.content

    async def publish(
        self, version: VersionId, files: AdapterFiles, metadata: Mapping[str, str]
    ) -> None:
        """Keep a version; refuse other content under a known name."""
        self._answer()
        if self.versions.setdefault(version, files) != files:
            raise RoundError(f"{version} exists already with other content")

    async def promote(
        self,
        version: VersionId,
        reason: str,
        numbers: Mapping[str, Any],
        cause: RollbackCause | None = None,
    ) -> None:
        """Serve a version."""
        self._answer()
        if self.before_promote is not None:
            await self.before_promote()
        if version not in self.versions:
            raise UnknownObjectError(f"no version {version}")
        self.active[version.partition("@")[0]] = version
        self.promotions.append(version)
        self.reasons.append((version, reason, numbers))
        self.causes.append(cause)

    async def return_to_base(
        self,
        adapter: str,
        reason: str,
        numbers: Mapping[str, Any],
        cause: RollbackCause = "asked",
    ) -> None:
        """Serve no version of an adapter."""
        self._answer()
        self.active.pop(adapter, None)
        self.reasons.append((BASE, reason, numbers))
        self.causes.append(cause)

    async def start_gate(self, plan: GatePlan) -> None:
        """Begin to compare."""
        self._answer()
        assert plan.candidate in self.versions
        self.gates[plan.round] = plan

    async def gate_report(self, adapter: str, number: int) -> Progress[GateReport]:
        """Report the increase, with a little spread, over 40 samples."""
        self._answer()
        if number not in self.gates:
            raise UnknownObjectError(f"no gate {number}")
        d = self.increase
        sums = SliceSums(40, 40 * d, 40 * (d * d + 0.01))
        return Progress(report=GateReport(member=self.name, slices={"own": sums}))

    def _answer(self) -> None:
        if not self.is_live:
            raise UnreachableError(f"{self.name} does not answer")


class FakeCluster:
    """Members by name."""

    def __init__(self, *members: FakeMember) -> None:
        self.members = {member.name: member for member in members}

    def live(self) -> dict[str, ReplicaSnapshot]:
        """Return the snapshots of members that answer."""
        return {
            name: snapshot(
                name,
                active=dict(member.active),
                watched=dict(member.watched),
                base_digest=member.base_digest,
                allocation=member.allotments[-1].number if member.allotments else 0,
            )
            for name, member in self.members.items()
            if member.is_live
        }

    def view(self) -> Members:
        """Return what the coordinator is given."""
        return Members(self.live, lambda url: self.members[url.removeprefix("http://")])


class FakeAggregator:
    """Joins the updates' bytes by name, and refuses ``NAN``."""

    def __init__(self) -> None:
        self.plans: list[AggregatePlan] = []

    async def aggregate(self, plan: AggregatePlan) -> AggregateReport:
        """Write the output folder, as the real process does."""
        self.plans.append(plan)
        contents = {item.member: item.path.read_bytes() for item in plan.updates}
        refused = {name: "not finite" for name, content in contents.items() if content == NAN}
        used = sorted(contents.keys() - refused.keys())
        fresh = [item.member for item in plan.updates if not item.staleness]
        weights = b"".join(contents[name] for name in used)
        plan.output.mkdir()
        has_quorum = len(set(used) & set(fresh)) >= plan.min_updates
        report = AggregateReport(
            weights=dict.fromkeys(used, 1.0 / len(used)) if has_quorum else {},
            refused=refused,
            digest=hashlib.sha256(weights).hexdigest() if has_quorum else None,
        )
        (plan.output / ADAPTER_WEIGHTS).write_bytes(weights)
        (plan.output / ADAPTER_CONFIG).write_text("{}")
        (plan.output / REPORT_FILE).write_text(json.dumps(report.to_json()))
        return report


class FakeTime:
    """Time that passes only while something sleeps."""

    def __init__(self) -> None:
        self.clock = ManualClock()

    def timing(self) -> Timing:
        """Return what the coordinator is given."""
        return Timing(self.clock, self.clock.now_s, self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await asyncio.sleep(0)
