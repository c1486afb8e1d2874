"""What the front's routes act on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from collm.clock import Clock
from collm.cluster.planner import NoPlanner
from collm.cluster.registry import Registry
from collm.cluster.router import Router
from collm.cluster.sent import Sent
from collm.cluster.spreading import Spread
from collm.errors import UnknownAdapterError
from collm.metrics.front import FrontMetrics
from collm.metrics.traces import NoTraces, Traces
from collm.store.decisions import Decision
from collm.types import VersionId


class Rounds(Protocol):
    """Learning together, as the routes see it; ``cluster.coordinator.Coordinator`` fits."""

    def status(self) -> Mapping[str, Any]:
        """Return how each adapter that is learned together stands, ready for JSON.

        An entry has the ``active`` version, ``None`` before the first, and the latest ``rounds``.
        """
        ...

    def refusals(self, adapter: str, limit: int | None) -> Sequence[Decision]:
        """Return the decisions against candidates of an adapter's rounds, oldest first."""
        ...

    async def promote(self, version: VersionId) -> Spread:
        """Make a federated version the active one everywhere; raises ``UnknownAdapterError``."""
        ...

    async def roll_back(self, adapter: str) -> Spread:
        """Return an adapter to the version before, everywhere; raises ``UnknownAdapterError``."""
        ...


class NoRounds:
    """Nothing is learned together."""

    def status(self) -> Mapping[str, Any]:
        """Return no adapter."""
        return {}

    def refusals(self, adapter: str, limit: int | None) -> Sequence[Decision]:
        """Return no decision."""
        return ()

    async def promote(self, version: VersionId) -> Spread:
        """Raise ``UnknownAdapterError``."""
        raise UnknownAdapterError(f"version {version!r} was not learned together")

    async def roll_back(self, adapter: str) -> Spread:
        """Raise ``UnknownAdapterError``."""
        raise UnknownAdapterError(f"adapter {adapter!r} is not learned together")


class Planning(Protocol):
    """Sharing out traffic and training, as the routes see it; ``cluster.planner.Planner`` fits."""

    def status(self, replica_id: str | None = None) -> Mapping[str, Any]:
        """Return the allocation in force, or why one replica has its part; ready for JSON.

        Raises:
            UnknownObjectError: There is no allocation, or the replica is not in it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontBackends:
    """Everything that the routes of one front act on."""

    registry: Registry
    router: Router
    sent: Sent
    """The book that the registry was given as well."""
    clock: Clock
    """The registry's."""
    rounds: Rounds
    metrics: FrontMetrics = field(default_factory=FrontMetrics)
    """What is counted here; learning together counts its rounds."""
    traces: Traces = field(default_factory=NoTraces)
    """Where the paths of requests go."""
    planning: Planning = field(default_factory=NoPlanner)
