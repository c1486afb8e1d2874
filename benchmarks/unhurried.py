"""Training's programs where nothing is served: run to their end, in quanta as long as they like."""

from collections.abc import Generator
from typing import TypeVar

from collm.pacing.quanta import Quantum, QuantumKind

T = TypeVar("T")


class Unbounded:
    """Quanta as long as they like."""

    def max_size(self, kind: QuantumKind, limit_s: float) -> int:
        """Return a size that bounds nothing."""
        return 1_000_000


def drain(program: Generator[Quantum, None, T]) -> T:
    """Run a program to its end and return its value."""
    while True:
        try:
            next(program)
        except StopIteration as end:
            value: T = end.value
            return value
