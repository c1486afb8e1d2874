"""A process that publishes, promotes, rolls back and saves without end, to be killed.

Run as ``python -m factories.store_writer FOLDER KILL_AT``: it prints one line after each thing that
has been acknowledged, and kills itself before line ``KILL_AT`` of the store's code (0: never).
"""

import sys
from collections.abc import Callable
from pathlib import Path

from collm.store.data_folder import DataFolder
from factories.killed_process import acknowledge, kill_self_at

MAX_VERSIONS = 2


def content(number: int) -> dict[str, str]:
    """Return the files of version or checkpoint ``number``, by relative path."""
    return {"config.json": f"{number}\n", "deep/weights": f"{number} " * 3000}


def writer(number: int) -> Callable[[Path], None]:
    """Return the callback that writes ``content(number)``."""

    def write(folder: Path) -> None:
        for name, text in content(number).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)

    return write


def _write_without_end(data: DataFolder) -> None:
    while True:
        number = data.versions.next_number("a")
        published = data.versions.publish(
            "a",
            str(number),
            digest=f"digest {number}",
            base_digest="base",
            rank=4,
            metadata={},
            write=writer(number),
        )
        acknowledge("published", number)
        data.decisions.promote(published.version, "better", {"n": number})
        acknowledge("promotion", number)
        if number % 3 == 0 and "a" in data.decisions.held():
            back = data.decisions.held()["a"]
            data.decisions.rollback(back, "worse", {"n": number})
            acknowledge("rollback", int(back.partition("@")[2]))
        data.checkpoints.save("a", writer(number), {"step": number})
        acknowledge("saved", number)


if __name__ == "__main__":
    if int(sys.argv[2]):
        kill_self_at(int(sys.argv[2]))
    with DataFolder(Path(sys.argv[1]), max_versions=MAX_VERSIONS, now_s=lambda: 0.0) as opened:
        _write_without_end(opened)
