"""Federated rounds as a demo sees them on its front's ``/cluster``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A replica's part in a round."""

    member: str
    outcome: str
    num_examples: int
    """Samples that its update was trained on since the round's base; 0 without an update."""
    num_tokens: int
    loss_before: float | None
    """On its own held-out samples, nats per token, before it trained."""
    loss_after: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round, at the latest look."""

    number: int
    status: str
    reason: str | None
    candidate: str | None
    """The aggregate's version, once there is one."""
    took_s: float | None
    """``None`` while it is under way."""
    parts: tuple[Part, ...]
    loss_change: float | None
    """Mean change of loss on the members' held-out samples that the gate saw, nats per token."""

    @property
    def num_tokens(self) -> int:
        """Sample tokens behind all its updates."""
        return sum(part.num_tokens for part in self.parts)


def read_rounds(status: Mapping[str, Any]) -> tuple[Round, ...]:
    """Return what ``/cluster`` says of an adapter's latest rounds, oldest first."""
    rounds = (_round(entry) for entry in status["rounds"])
    return tuple(sorted(rounds, key=lambda found: found.number))


def _round(entry: Mapping[str, Any]) -> Round:
    ended_at_s = entry["ended_at_s"]
    return Round(
        number=entry["round"],
        status=entry["status"],
        reason=entry["reason"],
        candidate=entry["candidate"],
        took_s=None if ended_at_s is None else ended_at_s - entry["started_at_s"],
        parts=tuple(_part(member) for member in entry["members"]),
        loss_change=entry["results"].get("gate", {}).get("increase"),
    )


def _part(entry: Mapping[str, Any]) -> Part:
    report = entry["report"] or {}
    return Part(
        member=entry["member"],
        outcome=entry["outcome"],
        num_examples=report.get("num_examples", 0),
        num_tokens=report.get("num_tokens", 0),
        loss_before=report.get("loss_before"),
        loss_after=report.get("loss_after"),
    )
