"""What ``slo.py`` replays: rows of a trace cut into blocks, and the search for capacity. No torch.

A block is a run of neighbouring rows, its times stretched so that it has the wanted rate. Load is
thus changed by time alone: a block of another rate has other gaps, of the same variation.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from collm.workload.traces import Trace
from collm.workload.transforms import clip_lengths

TRACE = "azure_conv_2023"
PROMPT_DIVISOR = 8.0
OUTPUT_DIVISOR = 2.0
MAX_PROMPT_TOKENS = 384
MAX_OUTPUT_TOKENS = 256
QUICK_MAX_OUTPUT_TOKENS = 64
"""Short answers, so that blocks end soon; for `--quick` only."""

MIN_ATTAINMENT = 0.95
"""What training off must reach at a rate for it to be within capacity."""
_RISE = 1.5


def scale_lengths(trace: Trace, max_output_tokens: int) -> Trace:
    """Divide and clip the lengths for two cores, whose prefill is the bottleneck."""
    shorter = (
        replace(
            row,
            prompt_tokens=max(1, round(row.prompt_tokens / PROMPT_DIVISOR)),
            output_tokens=max(1, round(row.output_tokens / OUTPUT_DIVISOR)),
        )
        for row in trace
    )
    return clip_lengths(tuple(shorter), MAX_PROMPT_TOKENS, max_output_tokens)


def cut_block(trace: Trace, first: int, num_requests: int, duration_s: float) -> Trace:
    """Return ``num_requests`` rows from ``first`` on, stretched to arrive within ``duration_s``.

    The gap before each row counts, the first one's as well, so the block begins with a gap.

    Raises:
        ValueError: ``first`` is the first row, which has no gap, or the trace has not enough rows.
    """
    if not 1 <= first <= len(trace) - num_requests:
        raise ValueError(f"no {num_requests} rows from {first} on in {len(trace)}")
    before_s = trace[first - 1].arrived_at_s
    rows = trace[first : first + num_requests]
    stretch = duration_s / (rows[-1].arrived_at_s - before_s)
    return tuple(replace(row, arrived_at_s=(row.arrived_at_s - before_s) * stretch) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One arm's replay of one block."""

    arm: str
    load: float
    """Share of capacity."""
    block: int
    """Turns of one load and block replay the same requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to share the replica's time."""

    name: str
    every: int = 1
    """Takes part in every that many rounds."""


def plan_turns(
    arms: tuple[Arm, ...], loads: tuple[float, ...], num_rounds: int, seed: int
) -> Iterator[Turn]:
    """Return every turn: in each round all loads, in each load all arms, both in drawn order."""
    random = Random(seed)
    for number in range(num_rounds):
        for load in random.sample(loads, len(loads)):
            taking = [arm.name for arm in arms if number % arm.every == 0]
            for name in random.sample(taking, len(taking)):
                yield Turn(arm=name, load=load, block=number)


def block_size(
    rate_per_s: float, min_requests: int, min_s: float, max_s: float
) -> tuple[int, float]:
    """Return requests and seconds of a block: long enough for ``min_requests`` within bounds."""
    duration_s = min(max(min_requests / rate_per_s, min_s), max_s)
    num_requests = max(1, round(rate_per_s * duration_s))
    return num_requests, num_requests / rate_per_s


class KneeSearch:
    """Finds the highest rate at which a server keeps ``MIN_ATTAINMENT``.

    It goes up (or down) by half until a rate held and a higher one did not, then halves the
    interval between them until it is narrow.

    Args:
        start_per_s: First rate to try.
        resolution: Ratio of the failing to the holding rate that is narrow enough.
        max_probes: Rates to try at most.
    """

    def __init__(self, start_per_s: float, resolution: float, max_probes: int) -> None:
        self._next_per_s = start_per_s
        self._resolution = resolution
        self._num_left = max_probes
        self._failing_per_s = math.inf
        self.capacity_per_s = 0.0
        """Highest rate that held."""

    def next_rate(self) -> float | None:
        """Return the next rate to try; ``None`` when the search is over."""
        is_narrow = self._failing_per_s <= self.capacity_per_s * self._resolution
        return None if is_narrow or self._num_left == 0 else self._next_per_s

    def add(self, rate_per_s: float, attainment: float) -> None:
        """Take in what a rate reached."""
        self._num_left -= 1
        if attainment >= MIN_ATTAINMENT:
            self.capacity_per_s = max(self.capacity_per_s, rate_per_s)
        else:
            self._failing_per_s = min(self._failing_per_s, rate_per_s)
        if self._failing_per_s == math.inf:
            self._next_per_s = rate_per_s * _RISE
        elif self.capacity_per_s == 0.0:
            self._next_per_s = rate_per_s / _RISE
        else:
            self._next_per_s = math.sqrt(self.capacity_per_s * self._failing_per_s)
