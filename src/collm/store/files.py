"""Files and folders that appear whole or not at all, and stay when the machine loses power.

Content is written into a private folder beside the target, flushed, and renamed into place. A
killed process can leave such a private folder behind; ``remove_remains`` clears it up.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_STAGING = ".new-"


def create_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Create ``path``, which must not exist, with what ``fill`` writes into the folder it is given.

    Raises:
        FileExistsError: ``path`` exists; it is left as it is.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists already")
    with _staged(path) as staged:
        staged.mkdir()
        fill(staged)
        for entry in [*staged.rglob("*"), staged]:
            _sync(entry)
        staged.rename(path)
        _sync(path.parent)


def create_file(path: Path, content: bytes) -> None:
    """Create ``path``, which must not exist, with ``content``.

    Raises:
        FileExistsError: ``path`` exists; it is left as it is.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists already")
    with _staged(path) as staged:
        staged.write_bytes(content)
        _sync(staged)
        staged.rename(path)
        _sync(path.parent)


def make_folder(path: Path) -> None:
    """Create ``path`` and its missing parents, durably; do nothing if it is there."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        _sync(path.parent)


def remove_remains(folder: Path) -> None:
    """Remove what a killed process left half-written in ``folder``."""
    for remains in folder.glob(f"{_STAGING}*"):
        shutil.rmtree(remains)


@contextmanager
def _staged(path: Path) -> Iterator[Path]:
    """Yield a path of the same name, on the same file system, that nobody else uses."""
    make_folder(path.parent)
    staging = Path(tempfile.mkdtemp(dir=path.parent, prefix=_STAGING))
    try:
        yield staging / path.name
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
