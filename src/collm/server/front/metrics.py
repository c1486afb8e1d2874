"""What the front itself counts, and how it shows the replicas' figures beside its own."""

import re
from collections.abc import Iterable
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from collm.metrics.exporter import LATENCY_BUCKETS_S


class Outcome(StrEnum):
    """How a request for generated text ended, as the front saw it."""

    ANSWERED = "answered"
    """A replica's answer was passed on to its end, an error status included."""
    BROKEN = "broken"
    """The replica was lost after the stream had begun."""
    TURNED_AWAY = "turned_away"
    """No replica took it."""
    CLIENT_GONE = "client_gone"


class FrontMetrics:
    """Requests as the front saw them."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "collm_front_requests_total",
            "Requests for generated text by outcome.",
            ["outcome"],
            registry=self._registry,
        )
        self._retries = Counter(
            "collm_front_retries_total",
            "Requests sent on to another replica before anything had come from the first.",
            ["failed_at"],
            registry=self._registry,
        )
        self._ttft = Histogram(
            "collm_front_time_to_first_byte_seconds",
            "Arrival at the front to the first byte of the answer, retries included.",
            buckets=LATENCY_BUCKETS_S,
            registry=self._registry,
        )
        self._open = Gauge("collm_front_open_calls", "Answers under way.", registry=self._registry)
        self._replicas = Gauge(
            "collm_front_replicas", "Replicas by state.", ["state"], registry=self._registry
        )

    def count(self, outcome: Outcome) -> None:
        """Count a request that has ended."""
        self._requests.labels(outcome.value).inc()

    def retry(self, failed_at: str) -> None:
        """Count a request that goes on to another replica."""
        self._retries.labels(failed_at).inc()

    def first_byte(self, took_s: float) -> None:
        """Count the wait for an answer's first byte."""
        self._ttft.observe(took_s)

    def render(self, num_open: int, *, num_alive: int, num_replicas: int) -> str:
        """Return the front's figures, with these of the present, in Prometheus' text format."""
        self._open.set(num_open)
        self._replicas.labels("alive").set(num_alive)
        self._replicas.labels("dead").set(num_replicas - num_alive)
        return generate_latest(self._registry).decode()


_ABOUT = re.compile(r"# (HELP|TYPE) (?P<name>\S+) ")
_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(\{(?P<labels>.*)\})? (?P<rest>[^{}]+)")


def label_samples(texts: Iterable[tuple[str, str]]) -> str:
    """Put several replicas' metrics together, each sample labelled with its replica.

    Args:
        texts: Each replica's name and what it shows, in Prometheus' text format.

    Returns:
        One text, in which a metric's samples stand together and it is described once.
    """
    abouts: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica_id, text in texts:
        family = ""
        is_described = set(abouts)
        for line in text.splitlines():
            if about := _ABOUT.match(line):
                family = about["name"]
                samples.setdefault(family, [])
                if family not in is_described:
                    abouts.setdefault(family, []).append(line)
            elif sample := _SAMPLE.fullmatch(line):
                own = f",{sample['labels']}" if sample["labels"] else ""
                labelled = f'{sample["name"]}{{replica="{replica_id}"{own}}} {sample["rest"]}'
                samples.setdefault(family, []).append(labelled)
    lines = [line for name, found in samples.items() for line in (*abouts.get(name, ()), *found)]
    return "".join(f"{line}\n" for line in lines)
