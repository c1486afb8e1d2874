"""Cut, stretch and thin traces. Every function returns a new trace and leaves the old one."""

import itertools
from dataclasses import replace
from random import Random

from collm.workload.traces import Trace, TraceRow


def slice_time(trace: Trace, start_s: float, end_s: float) -> Trace:
    """Keep arrivals in [start_s, end_s) and count time from ``start_s``."""
    return tuple(
        replace(row, arrived_at_s=row.arrived_at_s - start_s)
        for row in trace
        if start_s <= row.arrived_at_s < end_s
    )


def scale_time(trace: Trace, factor: float) -> Trace:
    """Multiply all times by ``factor``; below 1 the rate rises. The gaps' variation stays.

    Raises:
        ValueError: ``factor`` is not above 0.
    """
    if factor <= 0:
        raise ValueError(f"factor must be above 0, not {factor}")
    return tuple(replace(row, arrived_at_s=row.arrived_at_s * factor) for row in trace)


def thin_keeping_bursts(trace: Trace, keep_share: float, seed: int) -> Trace:
    """Keep a share of the rows, each with the gap before it, in the same total time.

    What is drawn are gaps, not arrivals: from each run of neighbours in the order of their
    length one gap is kept, and all kept gaps are stretched by one factor to fill the
    trace's duration. So the gaps keep their distribution (and coefficient of variation), and
    as their order stays, a burst is still a run of short gaps and a silence a long one.
    What is lost: the exact time of day, and coincidences between sites.

    When few of the kept gaps make up most of the duration (a heavy tail thinned far) the
    variation depends on which of them were drawn.
    """
    _check_share(keep_share)
    if len(trace) < 2:
        return trace
    gaps = [0.0]
    gaps += [after.arrived_at_s - row.arrived_at_s for row, after in itertools.pairwise(trace)]
    by_length = sorted(range(1, len(trace)), key=gaps.__getitem__)
    random = Random(seed)
    kept = sorted(
        random.choice([index for _, index in stratum])
        for _, stratum in itertools.groupby(
            enumerate(by_length), key=lambda ranked: int(ranked[0] * keep_share)
        )
    )
    kept_s = sum(gaps[index] for index in kept)
    stretch = (trace[-1].arrived_at_s - trace[0].arrived_at_s) / kept_s if kept_s else 1.0
    arrivals = itertools.accumulate(
        (gaps[index] * stretch for index in kept), initial=trace[0].arrived_at_s
    )
    rows = (trace[index] for index in (0, *kept))
    return tuple(replace(row, arrived_at_s=at_s) for row, at_s in zip(rows, arrivals, strict=True))


def clip_lengths(trace: Trace, max_prompt_tokens: int, max_output_tokens: int) -> Trace:
    """Cut longer prompts and outputs down to a limit."""
    return tuple(
        replace(
            row,
            prompt_tokens=min(row.prompt_tokens, max_prompt_tokens),
            output_tokens=min(row.output_tokens, max_output_tokens),
        )
        for row in trace
    )


def divide_lengths(trace: Trace, divisor: float) -> Trace:
    """Divide prompts and outputs by ``divisor``, rounding, to at least one token.

    Raises:
        ValueError: ``divisor`` is not above 0.
    """
    if divisor <= 0:
        raise ValueError(f"divisor must be above 0, not {divisor}")
    return tuple(_divide(row, divisor) for row in trace)


def _divide(row: TraceRow, divisor: float) -> TraceRow:
    return replace(
        row,
        prompt_tokens=max(1, round(row.prompt_tokens / divisor)),
        output_tokens=max(1, round(row.output_tokens / divisor)),
    )


def _check_share(keep_share: float) -> None:
    if not 0 < keep_share <= 1:
        raise ValueError(f"keep_share must be in (0, 1], not {keep_share}")
