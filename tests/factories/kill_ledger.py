"""What the clients of a server that gets killed may rely on, and what may be either way."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

V = TypeVar("V")


class Refused(Exception):
    """The server answered that it did nothing."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Register(Generic[V]):
    """The values that the server may show by key: one, or two where a kill cut off a change.

    One thread at a time changes a key.
    """

    def __init__(self) -> None:
        self._values: dict[str, tuple[V, ...]] = {}

    def note(self, key: str, value: V) -> None:
        """Take an acknowledged value."""
        self._values[key] = (value,)

    @contextmanager
    def changing(self, key: str, value: V) -> Iterator[None]:
        """Expect ``value`` once the block has ended, either if it is cut off."""
        before = self._values[key]
        self._values[key] = (*before, value)
        try:
            yield
        except Refused:
            self._values[key] = before
            raise
        self._values[key] = (value,)

    def settle(self, key: str, value: V) -> None:
        """Take what a restarted server shows; fail unless it is one of the values expected."""
        assert value in self._values[key], (key, value, self._values[key])
        self._values[key] = (value,)

    def __getitem__(self, key: str) -> V:
        """Return the value of a key that no kill has left open."""
        (value,) = self._values[key]
        return value

    def __contains__(self, key: str) -> bool:
        return key in self._values

    @property
    def certain(self) -> dict[str, V]:
        """The keys whose values are known for sure."""
        items = tuple(self._values.items())
        return {key: values[0] for key, values in items if len(values) == 1}

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key, oldest first."""
        return tuple(self._values)


@dataclass(frozen=True)
class Course:
    """What an adapter that nobody trains serves, and the decisions that led there."""

    active: str | None = None
    held: str | None = None
    rows: tuple[tuple[str, str], ...] = ()

    def promoted(self, version: str) -> "Course":
        if version == self.active:
            return self
        return Course(version, self.active, (*self.rows, ("promotion", version)))

    def rolled_back(self) -> "Course":
        assert self.held is not None
        return Course(self.held, None, (*self.rows, ("rollback", self.held)))


@dataclass
class Ledger:
    """Everything acknowledged, over all lives of the server."""

    files: Register[bytes | None] = field(default_factory=Register)
    """Content by file id; ``None`` once deleted."""
    feedback: Register[str | None] = field(default_factory=Register)
    """Text to learn by feedback id; ``None`` once deleted."""
    forgotten: dict[str, str] = field(default_factory=dict)
    """The texts of feedback that is deleted, or was being deleted."""
    posted: dict[str, dict[str, str]] = field(default_factory=dict)
    """The bodies that feedback was given with."""
    jobs: Register[str] = field(default_factory=Register)
    """``live``, ``paused`` or ``cancelled`` by job id."""
    courses: Register[Course] = field(default_factory=Register)
    """By adapter that only the operator touches."""
    digests: dict[str, str] = field(default_factory=dict)
    """By version that the server told a digest of."""
    served: set[str] = field(default_factory=set)
    """Versions that answered, whole or in part."""
    answers: dict[str, str] = field(default_factory=dict)
    """The one greedy answer to the one question, by version."""
    num_rollbacks: int = 0
    """Acknowledged rollbacks of the adapter that learns."""
    steps: list[tuple[float, int]] = field(default_factory=list)
    """(seconds of all lives together, optimizer steps taken by then)."""
    acknowledgements: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released with each thing that clients may rely on from then on."""

    def answered(self, version: str, text: str) -> None:
        """Take a whole answer; a version always gives the same one."""
        assert self.answers.setdefault(version, text) == text, version
