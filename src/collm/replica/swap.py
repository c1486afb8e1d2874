"""The news that new requests to an adapter get another version."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from collm.lora.state import AdapterState
from collm.types import VersionId


class Cause(Enum):
    """Where the version that is active now comes from."""

    LEARNED = "learned"
    """A copy of the adapter's own shadow, which trains on."""
    BROUGHT = "promoted"
    """Somebody asked for it; the shadow is carried over to it."""
    RETURNED = "rolled back"
    """It was active before; what was learned since is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One change of an adapter's active version."""

    adapter: str
    version: VersionId
    """``BASE`` when the first version was taken back."""
    state: AdapterState | None
    """The version's; ``None`` for the base."""
    cause: Cause
    previous: VersionId | None = None
    """The version that was active before."""
    previous_state: AdapterState | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """What spoke for it."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What is kept beside the version."""
