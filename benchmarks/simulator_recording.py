"""A real run that the simulator is held to, kept in a file; and the same run simulated."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from collm.metrics.attainment import measure_attainment
from collm.metrics.goodput import throughput_per_s
from collm.metrics.latency import summarize_latency
from collm.metrics.records import RequestRecord
from collm.pacing.config import BudgetName, PacingConfig
from collm.sim.config import SimConfig
from collm.sim.policies import find_policy
from collm.sim.profile import Profile, parse_profile
from collm.sim.requests import SimRequest
from collm.sim.simulation import Simulation
from packed import read_packed, write_packed


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What all replicas did beside the trace."""

    training_tokens: float
    serve_s: float
    train_s: float
    """Of quanta, evaluation included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is compared."""

    attainment: float
    throughput_per_s: float
    training_tokens: float
    serve_s: float
    train_s: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A real run: its replicas, its requests, what came of them."""

    profile: Profile
    num_replicas: int
    budget: BudgetName
    duration_s: float
    requests: tuple[tuple[float, int, int], ...]
    """Arrival, prompt tokens and output tokens of each, by arrival."""
    warm_tokens: float
    """Trained on by each replica before the first arrival, on average."""
    slowness: float
    """Times as long as by the profile that all steps of the run took."""
    real: Figures

    def save(self, file: Path) -> None:
        """Write it to a packed JSON file."""
        value = asdict(self) | {"profile": json.loads(self.profile.to_json())}
        write_packed(value, file)


def load_recording(file: Path) -> Recording:
    """Read what ``save`` wrote."""
    value = read_packed(file)
    return Recording(
        profile=parse_profile(json.dumps(value["profile"]), str(file)),
        num_replicas=value["num_replicas"],
        budget=value["budget"],
        duration_s=value["duration_s"],
        requests=tuple((at_s, prompt, output) for at_s, prompt, output in value["requests"]),
        warm_tokens=value["warm_tokens"],
        slowness=value["slowness"],
        real=Figures(**value["real"]),
    )


def lengths(records: Sequence[RequestRecord]) -> tuple[tuple[float, int, int], ...]:
    """Return arrivals and the lengths that the server counted, by arrival."""
    return tuple(
        (one.arrived_at_s, max(one.num_prompt_tokens, 1), max(one.num_output_tokens, 1))
        for one in sorted(records, key=lambda one: one.arrived_at_s)
    )


def simulated(recording: Recording, seed: int = 0, slowness: float = 1.0) -> Figures:
    """Simulate the same arrivals and lengths, on replicas as in the profile or slower."""
    requests = [
        SimRequest(number, at_s, num_prompt, num_output, domain=0, is_scored=False)
        for number, (at_s, num_prompt, num_output) in enumerate(recording.requests)
    ]
    config = SimConfig(
        num_replicas=recording.num_replicas,
        seed=seed,
        slowness=(slowness,) * recording.num_replicas,
        pacing=PacingConfig(budget=recording.budget),
        says_lengths=True,
        warm_tokens=recording.warm_tokens,
    )
    records: list[RequestRecord] = []
    simulation = Simulation(
        recording.profile, find_policy("collm"), config, on_record=records.append
    )
    end = simulation.run(requests, recording.duration_s)
    seconds = end.seconds.values()
    work = Work(
        training_tokens=sum(end.training_tokens.values()),
        serve_s=sum(one["serve"] for one in seconds),
        train_s=sum(one["train"] + one["evaluate"] for one in seconds),
    )
    return figures(records, recording.duration_s, work)


def mean_figures(found: Sequence[Figures]) -> Figures:
    """Return the mean of several runs; of a time that some lack, ``None``."""
    rows = [asdict(one) for one in found]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return Figures(
        **{name: None if None in column else fmean(column) for name, column in columns.items()}
    )


def figures(records: Sequence[RequestRecord], duration_s: float, work: Work) -> Figures:
    """Return what is compared."""
    objectives = PacingConfig()
    ttft = summarize_latency(one.ttft_s for one in records)
    tpot = summarize_latency(one.tpot_s for one in records)
    return Figures(
        attainment=measure_attainment(records, objectives).share or 0.0,
        throughput_per_s=throughput_per_s(records, objectives, duration_s),
        **asdict(work),
        ttft_p50_s=ttft.p50_s,
        ttft_p99_s=ttft.p99_s,
        tpot_p50_s=tpot.p50_s,
        tpot_p99_s=tpot.p99_s,
    )
