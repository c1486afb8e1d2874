import errno
import hashlib
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from collm.errors import DataError, DiskFullError, StateError, UnknownObjectError
from collm.store import files
from collm.store.data_folder import DataFolder
from collm.store.jobs import JobStatus
from collm.store.uploads import StoredFile


def open_folder(path: Path) -> DataFolder:
    return DataFolder(path, max_versions=2, now_s=lambda: 12.5)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataFolder]:
    with open_folder(tmp_path) as opened:
        yield opened


def add(data: DataFolder, filename: str = "chat.jsonl", purpose: str = "fine-tune") -> StoredFile:
    return data.files.add(filename=filename, purpose=purpose, content=b"{}\n" * 3, num_samples=3)


def names(data: DataFolder, **query: str | int) -> tuple[list[str], bool]:
    page = data.files.list(**query)  # type: ignore[arg-type]
    return [file.filename for file in page.items], page.has_more


def test_added_file_is_found_with_its_content(data: DataFolder, tmp_path: Path) -> None:
    stored = add(data)
    assert stored == StoredFile(
        file_id=stored.file_id,
        filename="chat.jsonl",
        purpose="fine-tune",
        num_bytes=9,
        num_samples=3,
        digest=hashlib.sha256(b"{}\n{}\n{}\n").hexdigest(),
        created_at_s=12.5,
        path=tmp_path / "files" / stored.file_id,
    )
    assert len(stored.file_id) == len("file-") + 24
    assert data.files.get(stored.file_id) == stored
    assert data.files.read(stored.file_id) == stored.path.read_bytes() == b"{}\n" * 3


def test_files_survive_a_restart(tmp_path: Path) -> None:
    with open_folder(tmp_path) as data:
        stored = add(data)
    with open_folder(tmp_path) as data:
        assert data.files.list().items == (stored,)
        assert data.files.read(stored.file_id) == b"{}\n" * 3


@pytest.mark.parametrize("place", ["content", "folder", "row"])
def test_upload_to_a_full_disk_leaves_nothing_behind(
    data: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    sync, num_synced = files._sync, 0

    def fill_up(path: Path) -> None:
        nonlocal num_synced
        num_synced += 1
        if num_synced == {"content": 1, "folder": 2}.get(place):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(path)

    monkeypatch.setattr(files, "_sync", fill_up)
    if place == "row":
        with data.files._database.transaction() as connection:
            connection.execute("PRAGMA max_page_count = 1")  # no more than there are
    name = "long" * 50_000 if place == "row" else "short"
    with pytest.raises((OSError, DiskFullError)):
        add(data, name)
    monkeypatch.undo()
    assert names(data) == ([], False)
    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize("filename", ["../../etc/passwd", "", "a\0b", "日本.jsonl", "x" * 9999])
def test_filename_is_only_a_text(data: DataFolder, tmp_path: Path, filename: str) -> None:
    stored = add(data, filename)
    assert stored.filename == filename
    assert stored.path.parent == tmp_path / "files"


def test_filename_that_is_no_unicode_is_kept_readable(data: DataFolder) -> None:
    assert add(data, "a\udcff.jsonl").filename == "a?.jsonl"


def test_files_are_listed_newest_first_page_by_page(data: DataFolder) -> None:
    ids = [add(data, str(number)).file_id for number in range(5)]
    assert names(data, limit=2) == (["4", "3"], True)
    assert names(data, limit=2, after=ids[3]) == (["2", "1"], True)
    assert names(data, limit=2, after=ids[1]) == (["0"], False)
    assert names(data, limit=5) == (["4", "3", "2", "1", "0"], False)
    assert names(data, limit=2, order="asc", after=ids[0]) == (["1", "2"], True)


def test_files_are_listed_by_purpose(data: DataFolder) -> None:
    add(data, "a", "fine-tune")
    add(data, "b", "evals")
    assert names(data, purpose="evals") == (["b"], False)
    assert names(data, purpose="other") == ([], False)


def test_list_goes_on_after_a_file_that_was_deleted_meanwhile(data: DataFolder) -> None:
    ids = [add(data, str(number)).file_id for number in range(4)]
    for file_id in ids[2:]:
        data.files.delete(file_id)
    assert names(data, after=ids[2]) == (["1", "0"], False)


def test_list_after_an_unknown_file_is_refused(data: DataFolder) -> None:
    with pytest.raises(UnknownObjectError, match="file 'file-9' to list after does not exist"):
        data.files.list(after="file-9")


def test_deleted_file_is_gone(data: DataFolder) -> None:
    stored = add(data)
    data.files.delete(stored.file_id)
    assert not stored.path.exists()
    assert data.files.list().items == ()
    for use in (data.files.get, data.files.read, data.files.delete):
        with pytest.raises(UnknownObjectError, match=f"file '{stored.file_id}' does not exist"):
            use(stored.file_id)


@pytest.mark.parametrize("role", ["training_file", "validation_file"])
def test_file_of_a_job_that_has_not_ended_is_not_deleted(data: DataFolder, role: str) -> None:
    file_id = add(data).file_id
    job = data.jobs.add(
        adapter="a",
        settings={},
        is_continuous=False,
        training_file=file_id if role == "training_file" else None,
        validation_file=file_id if role == "validation_file" else None,
    )
    with pytest.raises(StateError, match=f"{file_id} is in use by job {job.job_id}") as caught:
        data.files.delete(file_id)
    assert caught.value.code == "file_in_use"
    assert data.files.read(file_id)
    data.jobs.change(job.job_id, status=JobStatus.CANCELLED)
    data.files.delete(file_id)


def test_damaged_content_is_never_read(data: DataFolder) -> None:
    stored = add(data)
    stored.path.write_bytes(b"{}")
    with pytest.raises(DataError, match=f"file {stored.file_id}: its content .* is damaged"):
        data.files.read(stored.file_id)
    stored.path.unlink()
    with pytest.raises(DataError, match="its content is missing from the disk"):
        data.files.read(stored.file_id)


def test_file_that_cannot_be_recorded_leaves_nothing(data: DataFolder, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "collm.db", isolation_level=None)
    connection.execute(
        "CREATE TRIGGER full BEFORE INSERT ON files BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    connection.close()
    with pytest.raises(sqlite3.IntegrityError, match="full"):
        add(data)
    assert list((tmp_path / "files").iterdir()) == []


def test_content_without_row_is_removed_on_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_folder(tmp_path) as data:
        kept = add(data).path
    (tmp_path / "files" / "file-0123").write_text("half an upload")
    (tmp_path / "files" / ".new-abc").mkdir()
    with caplog.at_level(logging.WARNING), open_folder(tmp_path):
        assert list((tmp_path / "files").iterdir()) == [kept]
    assert "file-0123 belongs to no uploaded file" in caplog.text
