"""What ``federated.py`` learned and asked so far, in a folder. No torch.

A long run may come in pieces, and processes with seeds of their own may share a folder.

settings.json       what an outcome depends on besides seed and way; another run's must be the same
outcomes/           one file for each seed and way to learn
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from federated_scores import Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one way to learn reached with one seed."""

    score: Score
    spent_s: float
    """Learning alone, without the questions afterwards."""
    num_threads: int
    rounds: tuple[Mapping[str, Any], ...] = ()
    """What each member reported in each round, where there were rounds."""


class OutcomeFolder:
    """Finished outcomes and the settings that they have in common.

    Args:
        folder: Made if it is not there.
        settings: What decides how an outcome turns out, besides its seed and way; as JSON has it.

    Raises:
        SystemExit: The folder has outcomes of other settings; it names those that differ.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._outcomes = folder / "outcomes"
        self._outcomes.mkdir(parents=True, exist_ok=True)
        kept = folder / "settings.json"
        if kept.exists():
            _check_same(folder, _read(kept), settings)
        else:
            _write(kept, dict(settings))

    def has(self, seed: int, way: str) -> bool:
        """Whether a way to learn is finished with a seed."""
        return self._path(seed, way).exists()

    def put(self, seed: int, way: str, outcome: Outcome) -> None:
        """Keep a finished outcome."""
        _write(self._path(seed, way), asdict(outcome))

    def get(self, seed: int, way: str) -> Outcome:
        """Return a finished outcome."""
        value = _read(self._path(seed, way))
        return Outcome(
            score=Score(**value["score"]),
            spent_s=value["spent_s"],
            num_threads=value["num_threads"],
            rounds=tuple(value["rounds"]),
        )

    def _path(self, seed: int, way: str) -> Path:
        return self._outcomes / f"{seed}-{way}.json"


def _check_same(folder: Path, known: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    differing = [
        f"{name} {known.get(name)!r}, not {settings.get(name)!r}"
        for name in sorted(known.keys() | settings.keys())
        if known.get(name) != settings.get(name)
    ]
    if differing:
        raise SystemExit(f"{folder} holds outcomes of other settings: {'; '.join(differing)}")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _write(path: Path, value: Any) -> None:
    # Another process may write the same name at the same moment.
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)
