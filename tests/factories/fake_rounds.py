"""What a front may ask of a replica, kept in memory."""

from collections.abc import Mapping
from dataclasses import replace
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
from collm.types import ReplicaSnapshot, RollbackCause, VersionId, VersionInfo
from factories.fake_replica import INFO
from factories.snapshots import make_snapshot


class FakeRoundDesk:
    """Does what it is told at once; ``refusal`` is raised by whatever is asked next."""

    def __init__(self, snapshot: ReplicaSnapshot | None = None) -> None:
        self.snapshot = snapshot or make_snapshot("r0")
        self.plans: list[RoundPlan] = []
        self.gates: list[GatePlan] = []
        self.rounds: dict[tuple[str, int], Progress[UpdateReport]] = {}
        self.comparisons: dict[tuple[str, int], Progress[GateReport]] = {}
        self.allotments: list[Allotment] = []
        self.finished: list[tuple[str, int]] = []
        self.updates: dict[tuple[str, int], bytes] = {}
        self.versions: dict[str, tuple[bytes, bytes, Mapping[str, str]]] = {}
        self.promotions: list[tuple[str, str, Mapping[str, Any]]] = []
        self.returns: list[tuple[str, str, dict[str, Any]]] = []
        self.refusal: Exception | None = None

    def state(self) -> ReplicaSnapshot:
        return self.snapshot

    def follow(self, allotment: Allotment) -> None:
        self._check()
        self.allotments.append(allotment)

    async def start_round(self, plan: RoundPlan) -> None:
        self._check()
        self.plans.append(plan)
        self.rounds.setdefault((plan.adapter, plan.round), Progress())

    def round_progress(self, adapter: str, number: int) -> Progress[UpdateReport]:
        return _find(self.rounds, adapter, number)

    async def finish_round(self, adapter: str, number: int) -> None:
        _find(self.rounds, adapter, number)
        self.finished.append((adapter, number))

    async def update(self, adapter: str, number: int) -> bytes:
        if (adapter, number) not in self.updates and (adapter, number) in self.rounds:
            raise StateError("not yet")
        return _find(self.updates, adapter, number)

    async def publish(
        self, version: str, config: bytes, weights_path: Path, metadata: Mapping[str, str]
    ) -> None:
        self._check()
        content = (config, weights_path.read_bytes(), dict(metadata))
        if self.versions.setdefault(version, content) != content:
            raise AdapterError(f"version {version} exists already with other content")

    async def promote(
        self,
        version: str,
        reason: str,
        numbers: Mapping[str, Any],
        cause: RollbackCause | None = None,
    ) -> VersionInfo:
        self._check()
        if version not in self.versions:
            raise UnknownAdapterError(f"version {version!r} does not exist")
        self.promotions.append((version, reason, dict(numbers), cause))
        return replace(INFO, version=VersionId(version), is_active=True)

    async def return_to_base(
        self,
        adapter: str,
        reason: str,
        numbers: Mapping[str, Any],
        cause: RollbackCause = "asked",
    ) -> None:
        self._check()
        self.returns.append((adapter, reason, dict(numbers), cause))

    async def start_gate(self, plan: GatePlan) -> None:
        self._check()
        if plan.adapter == "nobody":
            raise RoundError("does not take part")
        self.gates.append(plan)
        self.comparisons.setdefault((plan.adapter, plan.round), Progress())

    def gate_progress(self, adapter: str, number: int) -> Progress[GateReport]:
        return _find(self.comparisons, adapter, number)

    def _check(self) -> None:
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal


def _find(table: Mapping[tuple[str, int], Any], adapter: str, number: int) -> Any:
    if (adapter, number) not in table:
        raise UnknownObjectError(f"{number} of {adapter!r} is not known")
    return table[adapter, number]
