"""What members sent in rounds, as files: kept while a later aggregate may still need them."""

import shutil
import tempfile
from pathlib import Path

from collm.store.files import create_file, make_folder, remove_remains
from collm.store.names import check_name

_WORK = ".work-"


class UpdateFiles:
    """Owner of ``ADAPTER/ROUND/MEMBER.safetensors``; each by one thread at a time."""

    def __init__(self, root: Path) -> None:
        """Open the folder and remove what a killed process left half-written.

        Args:
            root: Nothing else may live there.
        """
        self._root = root
        for folder in root.glob("*/*"):
            remove_remains(folder)
            for work in folder.glob(f"{_WORK}*"):
                shutil.rmtree(work)

    def path(self, adapter: str, number: int, member: str) -> Path:
        """Return where an update is or would be.

        Raises:
            AdapterError: The adapter's or the member's name is not allowed.
        """
        check_name("member name", member)
        return self._folder(adapter, number) / f"{member}.safetensors"

    def save(self, adapter: str, number: int, member: str, content: bytes) -> None:
        """Keep an update durably, in place of what the member sent before.

        Raises:
            AdapterError: The adapter's or the member's name is not allowed.
        """
        path = self.path(adapter, number, member)
        path.unlink(missing_ok=True)  # sent before, but its arrival was not put on record
        create_file(path, content)

    def new_work_folder(self, adapter: str, number: int) -> Path:
        """Return a new, empty folder for an attempt at a round's aggregate.

        Whatever an earlier attempt still writes, it does not write there.
        """
        folder = self._folder(adapter, number)
        make_folder(folder)
        return Path(tempfile.mkdtemp(dir=folder, prefix=_WORK))

    def discard_before(self, adapter: str, number: int) -> None:
        """Remove what belongs to the rounds before ``number``."""
        check_name("adapter name", adapter)
        for folder in (self._root / adapter).glob("*"):
            if folder.name.isdecimal() and int(folder.name) < number:
                shutil.rmtree(folder)

    def _folder(self, adapter: str, number: int) -> Path:
        check_name("adapter name", adapter)
        return self._root / adapter / str(number)
