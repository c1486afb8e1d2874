"""Bodies of the ``/control`` routes that no other room defines."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from collm.types import RollbackCause


class ReturnBody(BaseModel):
    """Which adapter's versions to serve no more, and why, for the record."""

    model_config = ConfigDict(extra="forbid", strict=True)

    adapter: str
    reason: str
    numbers: dict[str, Any]
    cause: RollbackCause = "asked"


class PromoteBody(BaseModel):
    """Which version to serve, and why, for the record."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: str
    reason: str
    numbers: dict[str, Any]
    cause: RollbackCause | None = None
    """Why the version before is taken back; null when this is no return to an earlier one."""
