"""The figures of a simulated run; every one of them is labelled as simulated."""

from collections.abc import Iterable
from dataclasses import dataclass

from collm.metrics.goodput import regret
from collm.metrics.latency import LatencySummary
from collm.sim.simulation import RunEnd, Simulation
from collm.sim.tally import Tally, merge


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """One replica's figures."""

    replica: str
    num_requests: int
    attainment: float | None
    throughput_per_s: float
    output_tokens_per_s: float
    training_tokens_per_s: float
    serve_share: float
    """Of wall time, steps."""
    train_share: float
    """Of wall time, quanta."""
    num_preemptions: int
    ttft: LatencySummary
    tpot: LatencySummary


@dataclass(frozen=True, slots=True, kw_only=True)
class SimReport:
    """A run's figures."""

    is_simulated: bool = True
    policy: str
    profile: str
    profile_origin: str
    seed: int
    trace: str
    """Its name and how it was scaled."""
    duration_s: float
    num_requests: int
    attainment: float | None
    """Share of the requests that met every objective."""
    attainment_interval: tuple[float, float]
    throughput_per_s: float
    """F: requests per second that met every objective."""
    quality: float | None
    """Q, mean over those."""
    paper_goodput_per_s: float
    """Q-requests per second."""
    task_goodput_per_s: float | None
    """Right answers per second within the objectives; ``None`` without scored requests."""
    regret: float | None
    """1 - paper goodput / the oracle's; ``None`` if no oracle was run."""
    training_tokens: int
    training_tokens_per_s: float
    num_promotions: int
    rounds: dict[str, int]
    """How many ended how."""
    outcomes: dict[str, int]
    ttft: LatencySummary
    tpot: LatencySummary
    replicas: tuple[ReplicaReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLabels:
    """What a report says of its circumstances."""

    policy: str
    profile: str
    profile_origin: str
    seed: int
    trace: str


def paper_goodput_per_s(simulation: Simulation, end: RunEnd) -> float:
    """Return the Q-requests per second of a run."""
    return _all(simulation).quality_sum / end.duration_s


def make_report(
    simulation: Simulation, end: RunEnd, labels: RunLabels, oracle_goodput: float | None = None
) -> SimReport:
    """Return the figures of a run.

    Args:
        simulation: After ``run``.
        end: What ``run`` returned.
        labels: Its circumstances.
        oracle_goodput: Paper goodput of the oracle on the same requests, if it was run.
    """
    tally, duration_s = _all(simulation), end.duration_s
    attainment = tally.attainment
    goodput = tally.quality_sum / duration_s
    num_tokens = sum(end.training_tokens.values())
    return SimReport(
        policy=labels.policy,
        profile=labels.profile,
        profile_origin=labels.profile_origin,
        seed=labels.seed,
        trace=labels.trace,
        duration_s=duration_s,
        num_requests=sum(tally.outcomes.values()),
        attainment=attainment.share,
        attainment_interval=attainment.interval,
        throughput_per_s=tally.num_met / duration_s,
        quality=tally.quality_sum / tally.num_met if tally.num_met else None,
        paper_goodput_per_s=goodput,
        task_goodput_per_s=tally.score_sum / duration_s if tally.num_scored else None,
        regret=regret(goodput, oracle_goodput) if oracle_goodput else None,
        training_tokens=num_tokens,
        training_tokens_per_s=num_tokens / duration_s,
        num_promotions=end.num_promotions,
        rounds={status.value: count for status, count in end.rounds.items()},
        outcomes=dict(tally.outcomes),
        ttft=tally.ttft(),
        tpot=tally.tpot(),
        replicas=tuple(_replica_reports(simulation, end)),
    )


def _all(simulation: Simulation) -> Tally:
    return merge([*simulation.tallies.values(), simulation.turned_away])


def _replica_reports(simulation: Simulation, end: RunEnd) -> Iterable[ReplicaReport]:
    for name, replica in simulation.replicas.items():
        tally, seconds, duration_s = simulation.tallies[name], end.seconds[name], end.duration_s
        yield ReplicaReport(
            replica=name,
            num_requests=sum(tally.outcomes.values()),
            attainment=tally.attainment.share,
            throughput_per_s=tally.num_met / duration_s,
            output_tokens_per_s=tally.num_output_tokens / duration_s,
            training_tokens_per_s=end.training_tokens[name] / duration_s,
            serve_share=seconds["serve"] / duration_s,
            train_share=(seconds["train"] + seconds["evaluate"]) / duration_s,
            num_preemptions=replica.num_preemptions,
            ttft=tally.ttft(),
            tpot=tally.tpot(),
        )
