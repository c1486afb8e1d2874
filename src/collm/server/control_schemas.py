"""Bodies of the ``/control`` routes that no other room defines."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class ReturnBody(BaseModel):
    """Which adapter's versions to serve no more, and why, for the record."""

    model_config = ConfigDict(extra="forbid", strict=True)

    adapter: str
    reason: str
    numbers: dict[str, Any]


class PromoteBody(BaseModel):
    """Which version to serve, and why, for the record."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: str
    reason: str
    numbers: dict[str, Any]
