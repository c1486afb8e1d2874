"""One replica's live figures at one moment, read with suspicion, and what lies between two."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from collm.errors import DataError
from collm.metrics.goodput import paper_quality
from collm.metrics.service_times import counts_of

WORK = ("decode", "prefill", "train", "evaluate", "idle")
"""Kinds of work that a step loop's time goes into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """How far one adapter is on one replica."""

    version: str | None
    """What is served; ``None`` before the first version."""
    served_loss: float | None
    """Held-out loss of what is served, nats per token."""
    shadow_loss: float | None
    """Held-out loss of what is being trained."""
    training_loss: float | None
    served_exact: float | None
    """Share of held-out short answers that what is served gives exactly."""
    shadow_exact: float | None
    step: int
    done_share: float | None
    """Of a job that has an end."""
    status: str | None
    """The job's; ``None`` without a job."""
    num_tokens: int
    """Trained on since the replica's start."""

    @property
    def quality(self) -> float | None:
        """Return Q = 1 / max(CE, 0.1) of what is served, if it was measured."""
        return None if self.served_loss is None else paper_quality(self.served_loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Totals since the replica's start, and how it stands."""

    at_s: float
    """When it was so, on the replica's monotonic clock."""
    work_s: Mapping[str, float]
    """Seconds by kind of work."""
    ttft: Counter[int]
    """Times to the first token by bucket, as ``metrics.service_times`` has them."""
    tpot: Counter[int]
    met: Mapping[str, int]
    """Requests that met every objective, by the adapter that they asked for."""
    num_missed: int
    num_output_tokens: int
    num_running: int
    num_waiting: int
    used_share: float
    """Of the KV blocks."""
    ttft_objective_s: float
    tpot_objective_s: float
    learning: Mapping[str, Learning] = field(default_factory=dict)
    """By adapter."""

    @property
    def num_training_tokens(self) -> int:
        """Return the tokens trained on, over all adapters."""
        return sum(one.num_tokens for one in self.learning.values())

    @property
    def age_s(self) -> float:
        """Return a total that only grows while the replica lives."""
        return sum(self.work_s.values())


def read(numbers: object) -> Reading:
    """Read what a replica shows on ``/control/snapshot``.

    Raises:
        DataError: Something that is needed is missing or of the wrong kind.
    """
    try:
        return _read(numbers)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"figures that cannot be read: {type(error).__name__}: {error}") from error


def _read(numbers: Any) -> Reading:
    serving, loop_s = numbers["serving"], numbers["loop_seconds"]
    counts = serving["adapters"]
    seconds = {**loop_s, **serving["phase_seconds"]}
    return Reading(
        at_s=_number(numbers["at_s"]),
        work_s={work: _number(seconds[work]) for work in WORK},
        ttft=counts_of(serving["ttft"]),
        tpot=counts_of(serving["tpot"]),
        met={str(name): int(one["met"]) for name, one in counts.items()},
        num_missed=sum(int(one["ended"]) - int(one["met"]) for one in counts.values()),
        num_output_tokens=sum(int(one["output_tokens"]) for one in counts.values()),
        num_running=int(numbers["running"]),
        num_waiting=int(numbers["waiting"]),
        used_share=_number(numbers["used_blocks"]) / max(1, int(numbers["num_blocks"])),
        ttft_objective_s=_number(serving["objectives"]["ttft_s"]),
        tpot_objective_s=_number(serving["objectives"]["tpot_s"]),
        learning={str(name): _learning(row) for name, row in numbers["adapters"].items()},
    )


def _learning(row: Mapping[str, Any]) -> Learning:
    active, status = row.get("active"), row.get("status")
    return Learning(
        version=None if active is None else str(active),
        served_loss=_maybe(row.get("active_held_out_loss")),
        shadow_loss=_maybe(row.get("held_out_loss")),
        training_loss=_maybe(row.get("training_loss")),
        served_exact=_maybe(row.get("active_exact_match")),
        shadow_exact=_maybe(row.get("held_out_exact_match")),
        step=int(row.get("step") or 0),
        done_share=_maybe(row.get("done_share")),
        status=None if status is None else str(status),
        num_tokens=int(row.get("training_tokens") or 0),
    )


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not finite")
    return number


def _maybe(value: Any) -> float | None:
    return None if value is None else _number(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happened between two readings, of one replica or of several."""

    elapsed_s: float
    """Summed over replicas, as the work is."""
    work_s: Mapping[str, float]
    ttft: Counter[int]
    tpot: Counter[int]
    num_met: int
    num_missed: int
    quality_met: float
    """Requests that met every objective, each weighted by its version's quality."""
    num_output_tokens: int
    num_training_tokens: int


def change(before: Reading, after: Reading) -> Change:
    """Return what happened between two readings of one replica's one life."""
    met = {name: count - before.met.get(name, 0) for name, count in after.met.items()}
    return Change(
        elapsed_s=after.at_s - before.at_s,
        work_s={work: after.work_s[work] - before.work_s[work] for work in WORK},
        ttft=after.ttft - before.ttft,
        tpot=after.tpot - before.tpot,
        num_met=sum(met.values()),
        num_missed=after.num_missed - before.num_missed,
        quality_met=sum(count * _quality(after, name) for name, count in met.items()),
        num_output_tokens=after.num_output_tokens - before.num_output_tokens,
        num_training_tokens=max(0, after.num_training_tokens - before.num_training_tokens),
    )


def pool(changes: Iterable[Change]) -> Change:
    """Return what happened on several replicas together; at least one is needed."""
    parts = list(changes)
    return Change(
        elapsed_s=sum(part.elapsed_s for part in parts),
        work_s={work: sum(part.work_s[work] for part in parts) for work in WORK},
        ttft=sum((part.ttft for part in parts), Counter()),
        tpot=sum((part.tpot for part in parts), Counter()),
        num_met=sum(part.num_met for part in parts),
        num_missed=sum(part.num_missed for part in parts),
        quality_met=math.fsum(part.quality_met for part in parts),
        num_output_tokens=sum(part.num_output_tokens for part in parts),
        num_training_tokens=sum(part.num_training_tokens for part in parts),
    )


def _quality(reading: Reading, adapter: str) -> float:
    """Return a served adapter's quality; what was never measured, as the base, adds nothing."""
    learning = reading.learning.get(adapter)
    return (learning.quality if learning is not None else None) or 0.0
