"""The demo's traffic: the arrivals and lengths of a real trace, filled with real texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from collm.chats import Sample
from collm.cli.demo_settings import TASK
from collm.errors import ConfigError
from collm.workload.config import WorkloadConfig
from collm.workload.requests import WorkloadRequest, build_requests, filler_text
from collm.workload.samples import by_group, load_samples
from collm.workload.traces import load_trace
from collm.workload.transforms import (
    clip_lengths,
    divide_lengths,
    scale_time,
    slice_time,
    thin_keeping_bursts,
)

MAX_MINUTES = 24.0
OUT_OF_SCOPE = "oos"
"""Group of the requests that fit no intent."""

TRACE = "servegen_edge16_day"
_FILLER = "medquad"
_START_HOUR = 15.0
"""Afternoon and evening: prompts and answers of the lengths that a small model mostly gets."""
_HOUR_S = 3600.0
_SPEED_UP = 60.0
"""An hour of the trace passes in a minute."""
_LENGTH_DIVISOR = 2.0
"""Prompts and outputs are made shorter by this: two cores are less than what the trace ran on."""
_MAX_PROMPT_TOKENS = 256
_MAX_OUTPUT_TOKENS = 128
MAX_SCORED_TOKENS = 16
"""The longest right answer has seven tokens."""

ATTRIBUTIONS = (
    "clinc150 (CC BY 3.0): Clinc Inc.; S. Larson et al., An Evaluation Dataset for Intent "
    "Classification and Out-of-Scope Prediction, EMNLP-IJCNLP 2019. Changed: a subset of the "
    "rows, intent names with spaces, a fixed first line before each prompt.",
    "medquad (CC BY 4.0): A. Ben Abacha, D. Demner-Fushman, A Question-Entailment Approach to "
    "Question Answering, BMC Bioinformatics 20:511, 2019. Changed: answers cut to their first "
    "sentences, rows dropped; here pieces of the joined texts serve as prompts.",
    "servegen_edge16_day (Apache 2.0): the ServeGen authors; Y. Xiang et al., ServeGen: Workload "
    "Characterization and Generation of Large Language Model Serving in Production, 2025. "
    "Sampled from the published rates and length tables, not observed.",
)
"""What must be named wherever the data, or figures made from them, are shown."""

SHORT_ATTRIBUTION = (
    "Data: clinc150 (Clinc Inc., S. Larson et al., CC BY 3.0), medquad (A. Ben Abacha, "
    "D. Demner-Fushman, CC BY 4.0), servegen_edge16_day (the ServeGen authors, Apache 2.0); the "
    "report has the full attributions."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceUse:
    """Which part of which trace was replayed, and how it was scaled."""

    trace: str
    start_hour: float
    num_hours: float
    num_rows: int
    """Requests of the trace in these hours."""
    num_requests: int
    """Requests replayed: rows kept by thinning that keeps the bursts."""
    speed_up: float
    """Seconds of the trace that pass in one second."""
    length_divisor: float
    """What prompt and output lengths were divided by."""
    max_prompt_tokens: int
    """Longer prompts were clipped to this."""
    max_output_tokens: int
    """Longer outputs were clipped to this."""
    num_scored: int
    """Requests that ask a question of the task instead, and answer to their natural end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests to replay, and what is known of them."""

    requests: tuple[WorkloadRequest, ...]
    groups: Mapping[str, str]
    """Group (domain) of each right answer."""
    use: TraceUse


def build_traffic(minutes: float, requests_per_s: float, seed: int) -> Traffic:
    """Make the requests of a run; the same arguments give the same requests.

    Raises:
        ConfigError: The trace does not have that many hours or requests.
    """
    if not 0 < minutes <= MAX_MINUTES:
        raise ConfigError(f"--minutes is {minutes:g}; allowed: above 0, up to {MAX_MINUTES:g}")
    start_hour = min(_START_HOUR, MAX_MINUTES - minutes)
    hours = slice_time(load_trace(TRACE), start_hour * _HOUR_S, (start_hour + minutes) * _HOUR_S)
    share = requests_per_s * minutes * 60.0 / len(hours)
    if not 0 < share <= 1:
        most = len(hours) / (minutes * 60.0)
        raise ConfigError(
            f"--requests-per-s is {requests_per_s:g}; allowed: above 0, up to {most:.1f}"
        )
    trace = thin_keeping_bursts(scale_time(hours, 1.0 / _SPEED_UP), share, seed)
    trace = divide_lengths(trace, _LENGTH_DIVISOR)
    trace = clip_lengths(trace, _MAX_PROMPT_TOKENS, _MAX_OUTPUT_TOKENS)
    task = load_samples(TASK, "test")
    filler = filler_text(load_samples(_FILLER, "test"))
    requests = build_requests(
        trace,
        _mixed(task, seed),
        filler,
        WorkloadConfig(max_scored_tokens=MAX_SCORED_TOKENS),
        seed,
    )
    use = TraceUse(
        trace=TRACE,
        start_hour=start_hour,
        num_hours=minutes,
        num_rows=len(hours),
        num_requests=len(requests),
        speed_up=_SPEED_UP,
        length_divisor=_LENGTH_DIVISOR,
        max_prompt_tokens=_MAX_PROMPT_TOKENS,
        max_output_tokens=_MAX_OUTPUT_TOKENS,
        num_scored=sum(request.kind == "scored" for request in requests),
    )
    groups = {sample.answer: sample.group for sample in task}
    return Traffic(requests=requests, groups=groups, use=use)


def _mixed(samples: Sequence[Sample], seed: int) -> tuple[Sample, ...]:
    """Order samples so that every group appears throughout: one of each group in every round."""
    return tuple(_rounds(samples, Random(seed)))


def _rounds(samples: Sequence[Sample], random: Random) -> Iterator[Sample]:
    waiting = [random.sample(members, len(members)) for members in by_group(samples).values()]
    while waiting:
        random.shuffle(waiting)
        for members in waiting:
            yield members.pop()
        waiting = [members for members in waiting if members]
