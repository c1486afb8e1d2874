"""How far this replica is with what a coordinator asked of it, for other threads to read."""

from collections.abc import MutableMapping
from threading import Lock
from typing import TypeVar

from collm.federated.rounds import GateReport, Progress, UpdateReport

T = TypeVar("T")
_MAX_KEPT = 64
"""Rounds, of all adapters, that are remembered: more than a coordinator comes back to."""

Key = tuple[str, int]
"""An adapter and the number of its round."""


class RoundBoard:
    """Any thread may write and read; the loop's and the writing thread do the former."""

    def __init__(self) -> None:
        """Begin without any round."""
        self._lock = Lock()
        self._rounds: dict[Key, Progress[UpdateReport]] = {}
        self._gates: dict[Key, Progress[GateReport]] = {}

    def round(self, key: Key) -> Progress[UpdateReport] | None:
        """Return how far a round's training is; ``None`` for one that is not known."""
        return self._rounds.get(key)

    def gate(self, key: Key) -> Progress[GateReport] | None:
        """Return how far a round's comparison is; ``None`` for one that is not known."""
        return self._gates.get(key)

    def set_round(self, key: Key, progress: Progress[UpdateReport]) -> None:
        """Show how far a round's training is."""
        self._set(self._rounds, key, progress)

    def set_gate(self, key: Key, progress: Progress[GateReport]) -> None:
        """Show how far a round's comparison is."""
        self._set(self._gates, key, progress)

    def _set(self, table: MutableMapping[Key, T], key: Key, progress: T) -> None:
        with self._lock:
            table[key] = progress
            while len(table) > _MAX_KEPT:
                del table[next(iter(table))]
