"""What the ``/control`` routes need, as a protocol; ``replica.round_desk`` fits in production."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from collm.federated.allotment import Allotment
from collm.federated.rounds import GatePlan, GateReport, Progress, RoundPlan, UpdateReport
from collm.types import ReplicaSnapshot, RollbackCause, VersionInfo


class RoundDesk(Protocol):
    """What a front may ask of a replica; every call may be repeated."""

    def state(self) -> ReplicaSnapshot:
        """Return how the replica stands, without waiting for it."""
        ...

    def follow(self, allotment: Allotment) -> None:
        """Give credit, time and sizes of steps as allotted, from the next step on."""
        ...

    async def start_round(self, plan: RoundPlan) -> None:
        """Train for a round; no effect when it is known already.

        Raises:
            UnknownAdapterError: The version to train from is not here.
            RoundError: This replica does not take part.
        """
        ...

    def round_progress(self, adapter: str, number: int) -> Progress[UpdateReport]:
        """Return how far a round's training is; raises ``UnknownObjectError``."""
        ...

    async def finish_round(self, adapter: str, number: int) -> None:
        """Report what there is; raises ``UnknownObjectError``."""
        ...

    async def update(self, adapter: str, number: int) -> bytes:
        """Return a reported round's safetensors file; ``UnknownObjectError``, ``StateError``."""
        ...

    async def publish(
        self, version: str, config: bytes, weights_path: Path, metadata: Mapping[str, str]
    ) -> None:
        """Keep a version under this very name; no effect if it is here.

        Raises:
            AdapterError: A file is malformed or does not fit the base model, or the version exists
                with other content.
        """
        ...

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
            AdapterError, StateError: It cannot be promoted now.
        """
        ...

    async def return_to_base(
        self,
        adapter: str,
        reason: str,
        numbers: Mapping[str, Any],
        cause: RollbackCause = "asked",
    ) -> None:
        """Serve the bare base model under an adapter's name; no effect if that is so already."""
        ...

    async def start_gate(self, plan: GatePlan) -> None:
        """Compare a candidate; no effect when that is known already.

        Raises:
            UnknownAdapterError: One of the versions is not here.
            RoundError: This replica does not judge.
        """
        ...

    def gate_progress(self, adapter: str, number: int) -> Progress[GateReport]:
        """Return how far a round's comparison is; raises ``UnknownObjectError``."""
        ...
