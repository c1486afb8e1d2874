"""The version that an adapter learned together is trained from."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from collm.lora.layout import LoraLayout
from collm.lora.state import AdapterState, initial_state
from collm.types import VersionId

_FEDAVG = "fedavg"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseVersion:
    """A version, and what its making means for whoever trains on from it."""

    version: VersionId | None
    """``None`` for a fresh adapter, which changes nothing yet."""
    state: AdapterState
    members: frozenset[str] = frozenset()
    """Whose updates are in it."""
    keeps_basis: bool = False
    """Whether its factors are means of its members' factors, so that what an optimizer knows of
    theirs holds for them."""

    @classmethod
    def of(
        cls, version: VersionId, state: AdapterState, metadata: Mapping[str, str]
    ) -> "BaseVersion":
        """Return a published version, by what the coordinator wrote beside it."""
        members = metadata.get("members", "").split(",")
        return cls(
            version=version,
            state=state,
            members=frozenset(name.strip() for name in members if name.strip()),
            keeps_basis=metadata.get("strategy") == _FEDAVG,
        )


def is_of_round(metadata: Mapping[str, str]) -> bool:
    """Return whether a round made a version, by what is kept beside it."""
    return "round" in metadata


def fresh_state(adapter: str, layout: LoraLayout) -> AdapterState:
    """Return a new adapter of a layout: the same one for all who learn ``adapter`` together."""
    seed = int.from_bytes(hashlib.sha256(adapter.encode()).digest()[:7], "big")
    return initial_state(layout, seed)
