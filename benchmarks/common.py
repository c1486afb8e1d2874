"""What every benchmark shares: the environment, fair rounds, and one way to report.

Import this before torch: the threads' wait policy is read when torch is loaded.
"""

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# As the ``collm`` command has it; for the peers in the same process too. What is set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("KMP_BLOCKTIME", "0")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers.utils import logging as transformers_logging

from collm.cli.cache import cache_dir
from collm.model.config import DEFAULT_MODEL
from collm.model.sources import find_checkpoint

_PACKAGES = ("collm", "torch", "transformers", "peft")


def make_parser(
    description: str, *, rounds: int, rounds_are: str = "measurements of each side"
) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="folder, GGUF file or known name")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=rounds, help=rounds_are)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there too")
    return parser


@dataclass
class Report:
    """Tables of one run, printed as markdown at the end and written as JSON if asked for."""

    title: str
    arguments: argparse.Namespace
    environment: dict[str, Any] = field(init=False)
    notes: list[str] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.set_num_threads(self.arguments.threads)
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        self.environment = _environment(self.arguments)

    def note(self, text: str) -> None:
        """Add a sentence for the reader; printed at once as well."""
        self.notes.append(text)
        progress(text)

    def table(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add a table; the first row names the columns."""
        self.tables.append({"title": title, "rows": [dict(row) for row in rows]})

    def finish(self) -> None:
        """Print everything, and write the JSON file."""
        print(f"\n# {self.title}\n")
        for name, value in self.environment.items():
            print(f"- {name}: {value}")
        for table in self.tables:
            print(f"\n## {table['title']}\n\n{_markdown(table['rows'])}")
        if self.notes:
            print("\n" + "\n".join(f"- {note}" for note in self.notes))
        if self.arguments.json is not None:
            value = {
                "title": self.title,
                "environment": self.environment,
                "tables": self.tables,
                "notes": self.notes,
                "raw": self.raw,
            }
            self.arguments.json.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Rates:
    """One side's measurements."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle measurement."""
        return statistics.median(self.values)

    def __str__(self) -> str:
        return f"{self.median:.0f} ({min(self.values):.0f}–{max(self.values):.0f})"


def interleave(sides: Mapping[str, Callable[[int], float]], rounds: int) -> dict[str, Rates]:
    """Measure all sides in turn, ``rounds`` times, after one unmeasured turn of each.

    Whatever else the machine does then falls on all sides alike. A side is given the number of its
    turn, so that sides can use the same input in the same turn.
    """
    values: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, measure in sides.items():
            value = measure(turn)
            if turn > 0:
                values[name].append(value)
    return {name: Rates(tuple(measured)) for name, measured in values.items()}


def checkpoint_folder(arguments: argparse.Namespace) -> Path:
    """Return the checkpoint that all sides load."""
    return find_checkpoint(arguments.model, cache_dir=cache_dir())


def progress(text: str) -> None:
    """Say on stderr how far the run is."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def _environment(arguments: argparse.Namespace) -> dict[str, Any]:
    script = Path(sys.argv[0])
    command = shlex.join(["python", f"{script.parent.name}/{script.name}", *sys.argv[1:]])
    return {
        "reproduce": command,
        "versions": ", ".join(f"{name} {_version(name)}" for name in _PACKAGES),
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "threads": arguments.threads,
        "dtype": arguments.dtype,
        "model": arguments.model,
        "OMP_WAIT_POLICY": os.environ["OMP_WAIT_POLICY"],
        "GOMP_SPINCOUNT": os.environ["GOMP_SPINCOUNT"],
        "load average at start": os.getloadavg()[0],
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{len(names)} × {names[0] if names else platform.processor()} ({', '.join(known)})"


def _markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(row[name]) for name in columns) + " |" for row in rows]
    return "\n".join(lines)
