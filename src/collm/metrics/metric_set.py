"""Making metrics, and remembering what each one means: what is exported and what is documented."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What one metric is; the only place where it is said."""

    name: str
    """As it is exported: a counter ends with ``_total``."""
    kind: Kind
    text: str
    """One sentence for people, also ``# HELP``."""
    labels: tuple[str, ...]


class MetricSet:
    """Makes the metrics of one exporter; ``definitions`` grows with each.

    Args:
        registry: Where they are registered.
        labels: Labels that come before each metric's own.
    """

    def __init__(self, registry: CollectorRegistry, *labels: str) -> None:
        self._registry = registry
        self._labels = labels
        self.definitions: list[Definition] = []

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Make a counter; ``name`` ends with ``_total``."""
        assert name.endswith("_total"), name
        return Counter(
            name, text, self._define(name, "counter", text, labels), registry=self._registry
        )

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Make a gauge."""
        return Gauge(name, text, self._define(name, "gauge", text, labels), registry=self._registry)

    def histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float]) -> Histogram:
        """Make a histogram; ``buckets`` are upper bounds, in order."""
        names = self._define(name, "histogram", text, labels)
        return Histogram(name, text, names, buckets=buckets, registry=self._registry)

    def _define(self, name: str, kind: Kind, text: str, labels: tuple[str, ...]) -> tuple[str, ...]:
        names = (*self._labels, *labels)
        self.definitions.append(Definition(name=name, kind=kind, text=text, labels=names))
        return names
