"""Creates a folder exactly once, complete or not at all, whoever else tries at the same time."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def create_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return ``folder``, created by ``fill`` if it is not there yet.

    ``fill`` writes into an empty folder beside it, which is flushed and renamed when done. Other
    processes that want the same folder wait; remains of a killed one are removed.

    Args:
        folder: What to create.
        fill: Writes the content into the folder it is given.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        if folder.is_dir():
            return folder
        prefix = f".{folder.name}.new-"
        for remains in folder.parent.glob(f"{prefix}*"):
            shutil.rmtree(remains)
        staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix))
        try:
            fill(staging)
            staging.chmod(0o755)  # mkdtemp made it private
            for path in [*staging.rglob("*"), staging]:
                _sync(path)
            staging.rename(folder)
            _sync(folder.parent)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return folder


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
