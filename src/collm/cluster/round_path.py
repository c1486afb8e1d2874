"""What a round went through, for those who count, trace or show it once it has ended."""

from collections.abc import Callable
from dataclasses import dataclass

from collm.store.rounds import MemberRecord, RoundRecord


@dataclass(frozen=True, slots=True)
class Stage:
    """One of a round's steps."""

    name: str
    """The round's status while it was under way."""
    started_at_s: float
    """Seconds since 1970."""
    ended_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPath:
    """A round that has ended."""

    record: RoundRecord
    members: tuple[MemberRecord, ...]
    """Everybody's part in it."""
    stages: tuple[Stage, ...]
    """In order; those that a process before this one went through are missing."""


RoundObserver = Callable[[RoundPath], None]
"""Told of each round that ends; must not block."""
