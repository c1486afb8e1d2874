"""How long the quanta of a run took, by kind, beside the limit that they are cut for."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from collm.metrics.latency import percentile
from collm.pacing.quanta import LEARNING, Quantum


@dataclass
class QuantumLog:
    """Times and sizes of the quanta that ran, by kind."""

    limit_ms: float
    spent_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    sizes: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    num_tokens: int = 0
    """Sample tokens behind finished optimizer steps."""

    def add(self, quantum: Quantum, seconds: float) -> None:
        """Note a quantum."""
        self.spent_ms[quantum.kind].append(seconds * 1e3)
        self.sizes[quantum.kind].append(quantum.size)

    def late_kinds(self) -> dict[str, float]:
        """Return the kinds past the limit at p99, each with its p99 in ms."""
        return {
            kind: p99_ms
            for kind, values in self.spent_ms.items()
            if (p99_ms := percentile(values, 0.99)) is not None and p99_ms > self.limit_ms
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the table."""
        late = self.late_kinds()
        return [
            {
                "quantum": kind,
                "count": len(values),
                "median size": percentile(self.sizes[kind], 0.5),
                "p50 ms": f"{percentile(values, 0.5):.1f}",
                "p99 ms": f"{percentile(values, 0.99):.1f}",
                "max ms": f"{max(values):.1f}",
                f"p99 ≤ {self.limit_ms:g} ms": "NO" if kind in late else "yes",
            }
            for kind, values in self.spent_ms.items()
        ]

    def rate(self) -> float:
        """Return training tokens per second of learning, evaluation and copies left out."""
        spent_ms = sum(sum(self.spent_ms.get(kind, ())) for kind in LEARNING)
        return self.num_tokens / (spent_ms / 1e3) if spent_ms else 0.0
