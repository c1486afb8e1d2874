"""What a front shows to Prometheus of its own: requests, replicas, and rounds of learning."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from collm.metrics.buckets import LATENCY_BUCKETS_S, ROUND_BUCKETS_S
from collm.metrics.metric_set import Definition, MetricSet


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
    """Requests, replicas and rounds as the front saw them; belongs to one event loop."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._set = MetricSet(self._registry)
        self._started_at_s: dict[str, float] = {}
        self._make_requests()
        self._make_replicas()
        self._make_rounds()

    @property
    def definitions(self) -> tuple[Definition, ...]:
        """What each metric means."""
        return tuple(self._set.definitions)

    def count(self, outcome: Outcome) -> None:
        """Count a request that has ended."""
        self._requests.labels(outcome.value).inc()

    def retry(self, failed_at: str) -> None:
        """Count a request that goes on to another replica."""
        self._retries.labels(failed_at).inc()

    def first_byte(self, took_s: float) -> None:
        """Count the wait for an answer's first byte."""
        self._ttft.observe(took_s)

    def replica_answers(self, replica_id: str, started_at_s: float) -> None:
        """Note that a replica takes requests; with another start than before, it was restarted."""
        before = self._started_at_s.get(replica_id)
        self._started_at_s[replica_id] = started_at_s
        is_restart = before is not None and before != started_at_s
        self._restarts.labels(replica_id).inc(is_restart)

    def round_ended(
        self,
        adapter: str,
        outcome: str,
        *,
        members: Iterable[str],
        stages: Iterable[tuple[str, float]],
        ended_at_s: float,
    ) -> None:
        """Count a round.

        Args:
            adapter: What was learned.
            outcome: How it ended.
            members: What became of each member's part.
            stages: Each stage's name and the seconds that it took, as far as this process saw it.
            ended_at_s: Seconds since 1970.
        """
        self._rounds.labels(adapter, outcome).inc()
        self._round_at.labels(adapter, outcome).set(ended_at_s)
        for one in members:
            self._parts.labels(adapter, one).inc()
        for stage, seconds in stages:
            self._stages.labels(adapter, stage).observe(seconds)

    def render(self, num_open: int, is_live: Mapping[str, bool]) -> str:
        """Return the front's figures, with these of the present, in Prometheus' text format.

        Args:
            num_open: Answers under way.
            is_live: Whether each replica that there is takes requests.
        """
        self._open.set(num_open)
        self._replicas.labels("alive").set(sum(is_live.values()))
        self._replicas.labels("dead").set(len(is_live) - sum(is_live.values()))
        return generate_latest(self._registry).decode()

    def _make_requests(self) -> None:
        make = self._set
        self._requests = make.counter(
            "collm_front_requests_total",
            "Requests for generated text that ended: `answered`, `broken`, `turned_away`, "
            "`client_gone`.",
            "outcome",
        )
        self._retries = make.counter(
            "collm_front_retries_total",
            "Requests sent on to another replica before anything had come from the first.",
            "failed_at",
        )
        self._ttft = make.histogram(
            "collm_front_time_to_first_byte_seconds",
            "Arrival at the front to the first byte of the answer, retries included.",
            buckets=LATENCY_BUCKETS_S,
        )
        self._open = make.gauge("collm_front_open_calls", "Answers under way.")
        for outcome in Outcome:
            self._requests.labels(outcome.value)

    def _make_replicas(self) -> None:
        make = self._set
        self._replicas = make.gauge(
            "collm_front_replicas", "Replicas that are `alive` or `dead`.", "state"
        )
        self._restarts = make.counter(
            "collm_front_replica_restarts_total",
            "Times that a replica took requests again in a new process.",
            "replica",
        )

    def _make_rounds(self) -> None:
        make = self._set
        self._rounds = make.counter(
            "collm_rounds_total",
            "Federated rounds that ended: `done` (promoted), `refused` (by the gate), `abandoned`.",
            "adapter",
            "outcome",
        )
        self._round_at = make.gauge(
            "collm_round_ended_timestamp_seconds",
            "When the latest round with this outcome ended, in seconds since 1970.",
            "adapter",
            "outcome",
        )
        self._parts = make.counter(
            "collm_round_members_total",
            "Members' parts in ended rounds: `reported`, `declined`, `failed`, `dead`, `late`, "
            "`refused`, or `open` when the round ended first.",
            "adapter",
            "outcome",
        )
        self._stages = make.histogram(
            "collm_round_stage_seconds",
            "Time of each stage of a round: `planned`, `training`, `aggregating`, `gating`, "
            "`promoting`.",
            "adapter",
            "stage",
            buckets=ROUND_BUCKETS_S,
        )
