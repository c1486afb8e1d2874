"""Frames: what the charts show of one stretch of time."""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collm.metrics.service_times import percentile_s
from collm.server.dashboard.readings import WORK, Change, Reading, change, pool

FIELDS = (
    *WORK,
    "ttft_p50",
    "ttft_p95",
    "tpot_p50",
    "tpot_p95",
    "attained",
    "goodput",
    "quality_goodput",
    "running",
    "waiting",
    "output_tokens",
    "training_tokens",
    "kv",
)
"""A row's values in order: shares of the time by kind of work, seconds, the share of requests that
met their objectives, requests per second that did so, the same weighted by quality, sequences,
tokens per second, the share of KV blocks in use. ``null`` is not known."""

CLUSTER = ""
"""The name of the row that is about all replicas together; no replica has it."""
LEAST_WINDOW_S = 30.0
"""What is said of requests is about at least so long: there are few in a second."""
KEPT_S = 60.0
"""The longest stretch that a frame is about."""

Row = Sequence[float | None]


class Recent:
    """One replica's readings of the latest minute, in one life of it."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque()
        self.moved_at_s = 0.0
        """When its figures were last other than before, on the reader's clock."""

    @property
    def latest(self) -> Reading:
        """The latest reading; there must be one."""
        return self._readings[-1]

    def add(self, reading: Reading, now_s: float) -> None:
        """Take in a reading; totals that shrank mean that the replica was started anew."""
        readings = self._readings
        if readings and reading.at_s == readings[-1].at_s:
            return
        if readings and reading.age_s < readings[-1].age_s:
            readings.clear()
        self.moved_at_s = now_s
        readings.append(reading)
        while len(readings) > 2 and readings[1].at_s <= reading.at_s - KEPT_S:
            readings.popleft()

    def since(self, seconds: float) -> Change | None:
        """Return what happened in about so long, or since the first reading; ``None`` at first."""
        latest = self.latest
        start = self._readings[0]
        for reading in reversed(self._readings):
            # Half a reading's distance: what is read every second is not always read on time.
            if reading.at_s <= latest.at_s - seconds + 0.5:
                start = reading
                break
        return change(start, latest) if start is not latest else None


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one frame is made of, for one replica."""

    work: Change
    """Over the frame's own period."""
    requests: Change
    """Over its window, which is longer when the period is short."""
    latest: Reading


def stretch_of(recent: Recent, period_s: float) -> Stretch | None:
    """Return what a frame of this period says of a replica; ``None`` before its second reading."""
    work = recent.since(period_s)
    requests = recent.since(max(period_s, LEAST_WINDOW_S))
    return None if work is None or requests is None else Stretch(work, requests, recent.latest)


def frame(at_s: float, stretches: Mapping[str, Stretch], missing: Iterable[str]) -> dict[str, Any]:
    """Return a frame ready for JSON.

    Args:
        at_s: Wall-clock time, seconds since 1970.
        stretches: By replica.
        missing: Replicas of which nothing is known now.
    """
    rows = {name: row([one]) for name, one in stretches.items()}
    if stretches:
        rows = {CLUSTER: row(list(stretches.values())), **rows}
    return {
        "at": round(at_s, 2),
        "rows": rows,
        "missing": sorted(missing),
        "objectives": _objectives(stretches),
        "learning": _learning(stretches),
    }


def row(stretches: Sequence[Stretch]) -> Row:
    """Return the values of ``FIELDS`` for one replica, or for several together."""
    work = pool(one.work for one in stretches)
    asked = pool(one.requests for one in stretches)
    window_s = max(one.requests.elapsed_s for one in stretches)
    num_ended = asked.num_met + asked.num_missed
    values = (
        *(work.work_s[kind] / work.elapsed_s for kind in WORK),
        percentile_s(asked.ttft, 0.5),
        percentile_s(asked.ttft, 0.95),
        percentile_s(asked.tpot, 0.5),
        percentile_s(asked.tpot, 0.95),
        asked.num_met / num_ended if num_ended else None,
        asked.num_met / window_s,
        asked.quality_met / window_s,
        float(sum(one.latest.num_running for one in stretches)),
        float(sum(one.latest.num_waiting for one in stretches)),
        asked.num_output_tokens / window_s,
        asked.num_training_tokens
        / window_s,  # counted by the optimizer step, which may take a while
        sum(one.latest.used_share for one in stretches) / len(stretches),
    )
    return [None if value is None else float(f"{value:.4g}") for value in values]


def _objectives(stretches: Mapping[str, Stretch]) -> dict[str, float]:
    """Return the strictest objectives of all replicas; nothing without any."""
    if not stretches:
        return {}
    readings = [one.latest for one in stretches.values()]
    return {
        "ttft_s": min(reading.ttft_objective_s for reading in readings),
        "tpot_s": min(reading.tpot_objective_s for reading in readings),
    }


def _learning(stretches: Mapping[str, Stretch]) -> dict[str, dict[str, Any]]:
    """Return, by adapter and replica, what the charts of learning show."""
    found: dict[str, dict[str, Any]] = {}
    for name, one in stretches.items():
        for adapter, learning in one.latest.learning.items():
            found.setdefault(adapter, {})[name] = {
                "version": learning.version,
                "served": learning.served_loss,
                "shadow": learning.shadow_loss,
                "training": learning.training_loss,
                "served_exact": learning.served_exact,
                "shadow_exact": learning.shadow_exact,
                "step": learning.step,
                "done": learning.done_share,
                "status": learning.status,
                "tokens": learning.num_tokens,
            }
    return found


def encode(value: object) -> bytes:
    """Return compact JSON; raises ``ValueError`` for what browsers could not read."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
