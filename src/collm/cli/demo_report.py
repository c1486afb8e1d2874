"""The figures of a finished demo, and the files that they are written to."""

import dataclasses
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from collm.cli.demo_progress import Answer, Look, Progress, Swap, share_right
from collm.cli.demo_settings import DemoSettings, server_settings
from collm.cli.demo_traffic import ATTRIBUTIONS, TraceUse
from collm.metrics.attainment import Attainment, measure_attainment, wilson_interval
from collm.metrics.latency import LatencySummary, summarize_latency
from collm.metrics.records import Objectives, RequestRecord

WINDOW = 300
_TIMELINE_STEP_S = 10.0

End = Literal["complete", "interrupted", "server ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Right answers among some."""

    num_right: int
    num_answers: int

    @property
    def share(self) -> float | None:
        """Return the share of right answers; ``None`` of none."""
        return self.num_right / self.num_answers if self.num_answers else None

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % Wilson interval of the share."""
        return wilson_interval(self.num_right, self.num_answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMatch:
    """Exact match early, late and overall."""

    first: Accuracy
    """Of the first 300 answers, or of the first half when there are fewer than 600."""
    last: Accuracy
    """Of as many at the end; the two never overlap."""
    all: Accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How the requests fared."""

    outcomes: Mapping[str, int]
    num_mixed: int
    """Requests whose tokens came from two versions."""
    attainment: Attainment
    """Of all requests."""
    attainment_by_kind: Mapping[str, Attainment]
    ttft_met: Attainment
    """Requests that completed and met the TTFT objective."""
    tpot_met: Attainment
    """Likewise for TPOT; an answer of one token meets it."""
    ttft: LatencySummary
    tpot: LatencySummary
    longest_scored_gap_s: float | None
    """Longest time between two tokens of a scored answer; the last look has that of all tokens."""
    sent_late_p99_s: float | None
    """How well the client kept its times; it is part of TTFT."""
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """One run, ready to be written."""

    end: End
    elapsed_s: float
    exact_match: ExactMatch
    """Of the task's ten domains."""
    out_of_scope: ExactMatch
    """Of requests that fit no intent."""
    exact_match_by_domain: Mapping[str, Accuracy]
    """Of the last answers, by domain."""
    serving: Serving
    training_tokens_per_s: float | None
    swaps: Sequence[Swap]
    last_look: Look | None
    """The server's own figures at the end."""

    @property
    def is_partial(self) -> bool:
        """Whether the run ended before its time."""
        return self.end != "complete"

    @property
    def is_clean(self) -> bool:
        """Whether no request failed, was turned away, or mixed versions."""
        outcomes, serving = self.serving.outcomes, self.serving
        return not (outcomes["failed"] or outcomes["rejected"] or serving.num_mixed)


def make_report(
    progress: Progress, objectives: Objectives, elapsed_s: float, end: End
) -> DemoReport:
    """Compute the figures of a run from what was seen of it."""
    exact_match = _exact_match(progress.answers)
    last = progress.answers[len(progress.answers) - exact_match.last.num_answers :]
    domains = sorted({answer.group for answer in progress.answers})
    return DemoReport(
        end=end,
        elapsed_s=elapsed_s,
        exact_match=exact_match,
        out_of_scope=_exact_match(progress.out_of_scope),
        exact_match_by_domain={
            domain: _accuracy([answer for answer in last if answer.group == domain])
            for domain in domains
        },
        serving=_serving(progress, objectives, elapsed_s),
        training_tokens_per_s=progress.tokens_per_s(),
        swaps=tuple(progress.swaps),
        last_look=progress.latest,
    )


def write_files(
    report: DemoReport, progress: Progress, settings: DemoSettings, use: TraceUse
) -> Path:
    """Write report, records and looks into the run's folder; return the report's path."""
    path = settings.out / "report.json"
    content = {
        "is_partial": report.is_partial,
        "seed": settings.seed,
        "objectives": dataclasses.asdict(settings.objectives),
        "trace": dataclasses.asdict(use),
        "configuration": server_settings(settings),
        "versions": _versions(),
        "machine": _machine(),
        "attributions": ATTRIBUTIONS,
        **_plain(report),
        "exact_match_over_time": _timeline(progress, report.elapsed_s),
    }
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    start_s = progress.start_s
    _write_lines(settings.out / "requests.jsonl", (_row(r, start_s) for r in progress.records))
    _write_lines(settings.out / "looks.jsonl", map(_plain, progress.looks))
    return path


def _exact_match(answers: Sequence[Answer]) -> ExactMatch:
    window = min(WINDOW, len(answers) // 2)
    return ExactMatch(
        first=_accuracy(answers[:window]),
        last=_accuracy(answers[len(answers) - window :]),
        all=_accuracy(answers),
    )


def _accuracy(answers: Sequence[Answer]) -> Accuracy:
    return Accuracy(num_right=sum(a.is_right for a in answers), num_answers=len(answers))


def _serving(progress: Progress, objectives: Objectives, elapsed_s: float) -> Serving:
    records = progress.records
    kinds = {kind: [r for r in records if r.kind == kind] for kind in ("scored", "length")}
    return Serving(
        outcomes={
            outcome: progress.outcomes[outcome]
            for outcome in ("completed", "rejected", "failed", "aborted")
        },
        num_mixed=progress.num_mixed,
        attainment=measure_attainment(records, objectives),
        attainment_by_kind={
            kind: measure_attainment(chosen, objectives) for kind, chosen in kinds.items()
        },
        ttft_met=measure_attainment(records, _Only(ttft_s=objectives.ttft_s)),
        tpot_met=measure_attainment(records, _Only(tpot_s=objectives.tpot_s)),
        ttft=summarize_latency(record.ttft_s for record in records),
        tpot=summarize_latency(record.tpot_s for record in records),
        longest_scored_gap_s=summarize_latency(r.max_gap_s for r in kinds["scored"]).max_s,
        sent_late_p99_s=summarize_latency(record.sent_late_s for record in records).p99_s,
        output_tokens_per_s=sum(r.num_output_tokens for r in records) / max(elapsed_s, 1e-9),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Only:
    """One objective, the other always met."""

    ttft_s: float = float("inf")
    tpot_s: float = float("inf")


def _timeline(progress: Progress, elapsed_s: float) -> list[dict[str, float | int | None]]:
    """Return exact match in windows of ten seconds, empty ones included."""
    rows: list[dict[str, float | int | None]] = []
    for index in range(int(elapsed_s // _TIMELINE_STEP_S) + 1):
        start_s = index * _TIMELINE_STEP_S
        inside = [a for a in progress.answers if start_s <= a.at_s < start_s + _TIMELINE_STEP_S]
        rows.append({"from_s": start_s, "num_answers": len(inside), "share": share_right(inside)})
    return rows


def _row(record: RequestRecord, start_s: float) -> dict[str, Any]:
    """Return a record as JSON: times since the start, and what is computed from them."""
    row = dataclasses.asdict(record)
    for name in ("arrived_at_s", "first_token_at_s", "last_token_at_s", "ended_at_s"):
        if row[name] is not None:
            row[name] -= start_s
    return {**row, "ttft_s": record.ttft_s, "tpot_s": record.tpot_s}


_DERIVED: dict[type, tuple[str, ...]] = {
    Accuracy: ("share", "interval"),
    Attainment: ("share", "interval"),
}
"""Properties that are written beside the fields."""


def _plain(value: Any) -> Any:
    """Return a value as JSON's own types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in dataclasses.fields(value)]
        names += _DERIVED.get(type(value), ())
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _write_lines(path: Path, rows: Any) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def _versions() -> dict[str, str]:
    packages = ("collm", "torch", "transformers", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def _machine() -> dict[str, str | int | None]:
    return {
        "system": platform.platform(),
        "processor": _cpu_name() or platform.processor(),
        "num_cpus": os.cpu_count(),
        "num_usable_cpus": _usable_cpus(),
    }


def _usable_cpus() -> int | None:
    get: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() if get is None else len(get(0))


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None)
