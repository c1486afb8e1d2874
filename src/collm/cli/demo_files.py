"""The files that a demo writes: its report, the requests, and the looks at its server."""

import dataclasses
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from collm.cli.cores import num_cores
from collm.cli.demo_answers import Accuracy, Answer, share_right
from collm.cli.demo_session import End
from collm.cli.demo_settings import DemoSettings
from collm.cli.demo_traffic import ATTRIBUTIONS, TraceUse
from collm.metrics.attainment import Attainment
from collm.metrics.records import RequestRecord

_TIMELINE_STEP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a run's files are made of."""

    end: End
    figures: Mapping[str, Any]
    """Of the report, ready for JSON."""
    configuration: Mapping[str, Any]
    """The server's."""
    records: Sequence[RequestRecord]
    looks: Iterable[Mapping[str, Any]]
    """Ready for JSON."""
    start_s: float
    """Start of the replay on the clock of the records."""


def write_files(contents: Contents, settings: DemoSettings, use: TraceUse) -> Path:
    """Write report, records and looks into the run's folder; return the report's path."""
    path = settings.out / "report.json"
    content = {
        "is_partial": contents.end != "complete",
        "seed": settings.seed,
        "objectives": dataclasses.asdict(settings.objectives),
        "trace": dataclasses.asdict(use),
        "configuration": contents.configuration,
        "versions": _versions(),
        "machine": _machine(),
        "attributions": ATTRIBUTIONS,
        **contents.figures,
    }
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    rows = (_row(record, contents.start_s) for record in contents.records)
    _write_lines(settings.out / "requests.jsonl", rows)
    _write_lines(settings.out / "looks.jsonl", contents.looks)
    return path


def exact_match_over_time(
    answers: Sequence[Answer], elapsed_s: float
) -> list[dict[str, float | int | None]]:
    """Return exact match in windows of ten seconds, empty ones included."""
    rows: list[dict[str, float | int | None]] = []
    for index in range(int(elapsed_s // _TIMELINE_STEP_S) + 1):
        start_s = index * _TIMELINE_STEP_S
        inside = [a for a in answers if start_s <= a.at_s < start_s + _TIMELINE_STEP_S]
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


def plain(value: Any) -> Any:
    """Return a value as JSON's own types; what is computed from some stands beside it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in dataclasses.fields(value)]
        names += _DERIVED.get(type(value), ())
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
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
        "num_usable_cpus": num_cores(),
    }


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None)
