"""Training checkpoints: per adapter the latest one and the one before, each with checksums."""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collm.store.files import create_folder, remove_remains
from collm.store.names import check_name

_log = logging.getLogger(__name__)
_STATE = "state"
_META = "meta.json"
_CHECKSUMS = "checksums.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is whole."""

    folder: Path
    """What the writer wrote, nothing after ``keep_place``; gone after the second save from now."""
    meta: Mapping[str, Any]
    """What was given with it, as JSON has it."""


class CheckpointStore:
    """Owner of the checkpoints on disk; one thread at a time uses it."""

    def __init__(self, root: Path) -> None:
        """Open the store and remove what a killed process left half-written.

        Args:
            root: Folder for ``NAME/NUMBER/``; nothing else may live there.
        """
        self._root = root
        for adapter_folder in root.glob("*"):
            remove_remains(adapter_folder)

    def save(self, adapter: str, write: Callable[[Path], None], meta: Mapping[str, Any]) -> None:
        """Make a new checkpoint durable; then drop all older ones but the one before.

        Args:
            adapter: Whose training it is.
            write: Writes the state into the folder it is given.
            meta: Kept beside it; anything that JSON can hold.

        Raises:
            AdapterError: The adapter's name is not allowed.
        """
        numbers = self._numbers(adapter)

        def fill(folder: Path) -> None:
            (folder / _STATE).mkdir()
            write(folder / _STATE)
            (folder / _META).write_text(json.dumps(dict(meta)))
            (folder / _CHECKSUMS).write_text(json.dumps(_checksums(folder)))

        create_folder(self._folder(adapter, max(numbers, default=0) + 1), fill)
        for number in numbers[:-1]:
            shutil.rmtree(self._folder(adapter, number))

    def discard(self, adapter: str) -> None:
        """Remove an adapter's checkpoints, which no longer say where its training stands."""
        for number in self._numbers(adapter):
            shutil.rmtree(self._folder(adapter, number))

    def keep_place(self, adapter: str) -> None:
        """Keep of an adapter's checkpoints only the latest one's meta, without a state.

        A killed process leaves them as they were or as they shall be.
        """
        latest = self.load(adapter)
        if latest is not None:
            self.save(adapter, lambda folder: None, latest.meta)
        for number in self._numbers(adapter)[:-1]:
            shutil.rmtree(self._folder(adapter, number))

    def load(self, adapter: str) -> Checkpoint | None:
        """Return the latest checkpoint whose checksums hold, if there is one.

        Raises:
            AdapterError: The adapter's name is not allowed.
        """
        for number in reversed(self._numbers(adapter)):
            folder = self._folder(adapter, number)
            if _is_whole(folder):
                return Checkpoint(folder / _STATE, json.loads((folder / _META).read_text()))
            _log.warning("checkpoint %s is damaged; trying the one before", folder)
        return None

    def _numbers(self, adapter: str) -> list[int]:
        """Return the numbers of an adapter's checkpoints, oldest first."""
        check_name("adapter name", adapter)
        names = (folder.name for folder in (self._root / adapter).glob("*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _folder(self, adapter: str, number: int) -> Path:
        return self._root / adapter / str(number)


def _checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below ``folder`` by relative path, but of the list itself."""
    sums = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / _CHECKSUMS:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            sums[path.relative_to(folder).as_posix()] = digest
    return sums


def _is_whole(folder: Path) -> bool:
    try:
        expected = json.loads((folder / _CHECKSUMS).read_text())
    except (OSError, ValueError):
        return False
    return bool(expected == _checksums(folder))
