import os
from pathlib import Path

import pytest

from collm.store.files import create_file, create_folder, make_folder, remove_remains


def fail(_: Path) -> None:
    raise RuntimeError("disk on fire")


def test_failed_fill_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="fire"):
        create_folder(tmp_path / "folder", fail)
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileExistsError, match="folder exists already"):
        create_folder(tmp_path / "folder", fail)
    assert list((tmp_path / "folder").iterdir()) == []


def test_everything_is_flushed_before_the_folder_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "folder"
    flushed: list[tuple[str, bool]] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        flushed.append((name, target.exists()))
        real_fsync(descriptor)

    def fill(folder: Path) -> None:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("x")

    monkeypatch.setattr(os, "fsync", fsync)
    create_folder(target, fill)
    assert sorted(flushed[:-1]) == [("deep", False), ("file", False), ("folder", False)]
    assert flushed[-1] == (tmp_path.name, True)


def test_content_is_flushed_before_the_file_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    flushed: list[tuple[str, bool, bytes | None]] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        content = path.read_bytes() if path.is_file() else None
        flushed.append((path.name, target.exists(), content))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    create_file(target, b"x")
    assert flushed == [("file", False, b"x"), (tmp_path.name, True, None)]
    assert list(tmp_path.iterdir()) == [target]


def test_existing_file_is_left_as_it_is(tmp_path: Path) -> None:
    create_file(tmp_path / "file", b"old")
    with pytest.raises(FileExistsError, match="file exists already"):
        create_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"


def test_remains_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".new-abc").mkdir()
    (tmp_path / ".new-abc" / "half").write_text("x")
    (tmp_path / "kept").mkdir()
    remove_remains(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_folder_is_made_with_its_parents_once(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
