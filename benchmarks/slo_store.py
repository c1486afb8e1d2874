"""What ``slo.py`` measured so far, in a folder: a long run may come in pieces. No torch.

settings.json   what a block depends on; another run's must be the same
capacity.json   requests/s, once known
first/          the data folder that every arm starts from a copy of
blocks/         one file for each finished block
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from collm.metrics.records import RequestRecord
from slo_plan import Turn
from slo_report import Block, Coverage, Work

Settings = Mapping[str, str | int | float | bool]


class BlockFolder:
    """Finished blocks and what they have in common.

    Args:
        folder: Made if it is not there.
        settings: What decides how a block turns out, besides its turn.

    Raises:
        SystemExit: The folder has blocks of other settings.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder = folder
        self._blocks = folder / "blocks"
        self._blocks.mkdir(parents=True, exist_ok=True)
        known = self._read("settings.json")
        if known is not None and known != dict(settings):
            raise SystemExit(f"{folder} holds blocks of other settings: {known}")
        self._write("settings.json", dict(settings))

    @property
    def first(self) -> Path:
        """Where the data folder of the first version is, or is to be."""
        return self._folder / "first"

    @property
    def first_version(self) -> str | None:
        """The version that requests meet at first; empty for the base, ``None`` if not learned."""
        return self._read("first.json")

    def put_first_version(self, version: str) -> None:
        """Note that ``first`` is complete."""
        self._write("first.json", version)

    @property
    def capacity_per_s(self) -> float | None:
        """Capacity in requests/s, if it was found."""
        return self._read("capacity.json")

    def put_capacity(self, rate_per_s: float) -> None:
        """Keep the capacity."""
        self._write("capacity.json", rate_per_s)

    def has(self, turn: Turn) -> bool:
        """Whether a turn's block is finished."""
        return (self._folder / _name(turn)).exists()

    def put(self, block: Block) -> None:
        """Keep a finished block."""
        turn = Turn(arm=block.arm, load=block.load, block=block.number)
        self._write(_name(turn), asdict(block))

    def blocks(self) -> Iterator[Block]:
        """Return all finished blocks, by load, arm and number."""
        found = [_block(self._read(path.name, self._blocks)) for path in self._blocks.iterdir()]
        yield from sorted(found, key=lambda one: (one.load, one.arm, one.number))

    def _read(self, name: str, folder: Path | None = None) -> Any:
        path = (folder or self._folder) / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def _write(self, name: str, value: Any) -> None:
        path = self._folder / name
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(value) + "\n", encoding="utf-8")
        unfinished.replace(path)


def _name(turn: Turn) -> str:
    return f"blocks/{turn.load:g}-{turn.arm}-{turn.block}.json"


def _block(value: dict[str, Any]) -> Block:
    work = Work(**value["work"])
    work = replace(
        work,
        steps=Coverage(**value["work"]["steps"]),
        quanta={kind: Coverage(**one) for kind, one in value["work"]["quanta"].items()},
    )
    records = (RequestRecord(**one) for one in value["records"])
    return Block(
        arm=value["arm"],
        load=value["load"],
        number=value["number"],
        records=tuple(replace(one, versions=tuple(one.versions)) for one in records),
        gaps_s=tuple(value["gaps_s"]),
        work=work,
    )
