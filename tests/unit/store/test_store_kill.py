"""A writer killed at any instant loses nothing acknowledged and leaves nothing half-written."""

import random
from pathlib import Path

import pytest

from collm.store.data_folder import DataFolder
from factories.killed_process import acknowledged_before_kill, acknowledged_before_line
from factories.store_writer import MAX_VERSIONS, content

WRITER = "store_writer"


def check(folder: Path, acknowledged: list[str]) -> None:
    """Open the folder as a restarted replica does and compare it with what was acknowledged."""
    events = [(what, int(number)) for what, number in map(str.split, acknowledged)]
    with DataFolder(folder, max_versions=MAX_VERSIONS, now_s=lambda: 0.0) as data:
        check_versions(data, folder, events)
        check_decisions(data, events)
        check_checkpoint(data, events)
    assert not list(folder.rglob(".new-*"))


def check_versions(data: DataFolder, folder: Path, events: list[tuple[str, int]]) -> None:
    versions = data.versions.published("a")
    numbers = [int(version.label) for version in versions]
    next_number = data.versions.next_number("a")
    assert next_number > latest("published", events)
    assert set(range(max(1, next_number - MAX_VERSIONS), next_number)) <= set(numbers)
    assert {version.folder for version in versions} == set((folder / "adapters").glob("*/*"))
    for version, number in zip(versions, numbers, strict=True):
        assert version.digest == f"digest {number}"
        assert read(version.folder) == content(number)


def check_decisions(data: DataFolder, events: list[tuple[str, int]]) -> None:
    history = data.decisions.history("a")
    # In order, with perhaps others between them that were taken but not acknowledged.
    taken = iter([(decision.kind, decision.version) for decision in history])
    for what, number in events:
        if what in ("promotion", "rollback"):
            assert (what, f"a@{number}") in taken
    assert data.decisions.active().get("a") == (history[-1].version if history else None)
    for version in (*data.decisions.active().values(), *data.decisions.held().values()):
        assert data.versions.get(version).folder.is_dir()


def check_checkpoint(data: DataFolder, events: list[tuple[str, int]]) -> None:
    checkpoint = data.checkpoints.load("a")
    if checkpoint is None:
        assert latest("saved", events) == 0
    else:
        assert checkpoint.meta["step"] >= latest("saved", events)
        assert read(checkpoint.folder) == content(checkpoint.meta["step"])


def latest(what: str, events: list[tuple[str, int]]) -> int:
    return max((number for kind, number in events if kind == what), default=0)


def read(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("line", sorted(random.Random(1).sample(range(1, 900), 10)))
def test_process_killed_before_a_line_of_the_store_loses_nothing(tmp_path: Path, line: int) -> None:
    check(tmp_path, acknowledged_before_line(WRITER, tmp_path, line))


@pytest.mark.parametrize("num_lines", sorted(random.Random(2).sample(range(1, 40), 4)))
def test_process_killed_from_outside_loses_nothing(tmp_path: Path, num_lines: int) -> None:
    check(tmp_path, acknowledged_before_kill(WRITER, tmp_path, num_lines))


def test_replica_killed_again_and_again_goes_on_from_where_it_was(tmp_path: Path) -> None:
    draw = random.Random(3)
    acknowledged: list[str] = []
    for _ in range(4):
        acknowledged += acknowledged_before_line(WRITER, tmp_path, draw.randrange(300, 900))
        check(tmp_path, acknowledged)
