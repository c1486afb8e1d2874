import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from collm.errors import AdapterError, UnknownAdapterError
from collm.store.data_folder import DataFolder
from collm.store.versions import PublishedVersion, VersionStore
from collm.types import VersionId
from factories.store_writer import content, writer


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataFolder]:
    with DataFolder(tmp_path, max_versions=2, now_s=lambda: 12.5) as opened:
        yield opened


def publish(
    store: VersionStore, adapter: str, label: str, *, digest: str = "d", base_digest: str = "b"
) -> PublishedVersion:
    return store.publish(
        adapter,
        label,
        digest=digest,
        base_digest=base_digest,
        rank=4,
        metadata={"loss": "1.5"},
        write=writer(7),
    )


def labels(store: VersionStore, adapter: str) -> list[str]:
    return [version.label for version in store.published(adapter)]


def test_published_version_is_found_with_its_files(data: DataFolder, tmp_path: Path) -> None:
    published = publish(data.versions, "support", "1")
    assert published == PublishedVersion(
        version=VersionId("support@1"),
        adapter="support",
        label="1",
        digest="d",
        base_digest="b",
        rank=4,
        metadata={"loss": "1.5"},
        published_at_s=12.5,
        folder=tmp_path / "adapters" / "support" / "1",
    )
    assert data.versions.get(VersionId("support@1")) == published
    for name, text in content(7).items():
        assert (published.folder / name).read_text() == text


def test_versions_survive_a_restart(tmp_path: Path) -> None:
    with DataFolder(tmp_path, max_versions=2, now_s=lambda: 1.0) as data:
        published = publish(data.versions, "a", "1")
    with DataFolder(tmp_path, max_versions=2, now_s=lambda: 2.0) as data:
        assert data.versions.published() == (published,)


def test_same_content_again_is_what_is_there(data: DataFolder) -> None:
    published = publish(data.versions, "a", "1")
    assert publish(data.versions, "a", "1") == published
    assert data.versions.published() == (published,)


@pytest.mark.parametrize("other", [{"digest": "x"}, {"base_digest": "x"}])
def test_version_never_changes(data: DataFolder, other: dict[str, str]) -> None:
    publish(data.versions, "a", "1")
    with pytest.raises(AdapterError, match="a@1 exists already with other content"):
        publish(data.versions, "a", "1", **other)


def test_numbers_rise_per_adapter_and_only_number_labels_count(data: DataFolder) -> None:
    versions = data.versions
    assert versions.next_number("a") == 1
    for label in ("1", "1.replica.8", "candidate", "7", "3", "007", "9" * 60):
        publish(versions, "a", label)
    assert versions.next_number("a") == 8
    assert versions.next_number("b") == 1


def test_failed_publication_changes_nothing_and_may_be_retried(data: DataFolder) -> None:
    def fail(folder: Path) -> None:
        writer(1)(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        data.versions.publish(
            "a", "1", digest="d", base_digest="b", rank=4, metadata={}, write=fail
        )
    assert data.versions.published() == ()
    assert data.versions.next_number("a") == 1
    publish(data.versions, "a", "1")
    assert labels(data.versions, "a") == ["1"]


def test_folder_without_row_gives_way_to_a_publication(data: DataFolder, tmp_path: Path) -> None:
    leftover = tmp_path / "adapters" / "a" / "1"
    leftover.mkdir(parents=True)
    (leftover / "old").write_text("x")
    assert not (publish(data.versions, "a", "1").folder / "old").exists()


def test_folders_without_row_are_removed_on_open(tmp_path: Path) -> None:
    with DataFolder(tmp_path, max_versions=2, now_s=lambda: 0.0) as data:
        kept = publish(data.versions, "a", "1").folder
    for name in ("a/2", "a/.new-xyz", "b/1"):
        (tmp_path / "adapters" / name).mkdir(parents=True)
    (tmp_path / "adapters" / "a" / "notes.txt").write_text("a person's file")
    with DataFolder(tmp_path, max_versions=2, now_s=lambda: 0.0):
        folders = {path for path in (tmp_path / "adapters").glob("*/*") if path.is_dir()}
    assert folders == {kept}


def test_only_the_latest_versions_of_each_adapter_are_kept(data: DataFolder) -> None:
    publish(data.versions, "b", "1")
    folders = [publish(data.versions, "a", str(number)).folder for number in range(1, 5)]
    assert labels(data.versions, "a") == ["3", "4"]
    assert labels(data.versions, "b") == ["1"]
    assert [folder.exists() for folder in folders] == [False, False, True, True]


def test_active_and_held_versions_are_kept_however_old(data: DataFolder) -> None:
    for number in ("1", "2"):
        data.decisions.promote(publish(data.versions, "a", number).version, "better", {})
    for number in range(3, 7):
        publish(data.versions, "a", str(number))
    assert labels(data.versions, "a") == ["1", "2", "5", "6"]
    data.decisions.rollback(VersionId("a@1"), "worse", {})
    publish(data.versions, "a", "7")
    assert labels(data.versions, "a") == ["1", "6", "7"]
    assert data.versions.next_number("a") == 8


def test_unknown_version_is_answered_with_those_there_are(data: DataFolder) -> None:
    with pytest.raises(UnknownAdapterError, match="'a@1' does not exist; published: none"):
        data.versions.get(VersionId("a@1"))
    publish(data.versions, "b", "1")
    with pytest.raises(UnknownAdapterError, match="published: b@1"):
        data.versions.get(VersionId("a@1"))


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".new-1", "a/b", "../a", "a@b", "a\n", "é", "a" * 65]
)
def test_names_that_are_no_plain_names_are_refused(
    data: DataFolder, tmp_path: Path, name: str
) -> None:
    with pytest.raises(AdapterError, match="adapter name .* is not allowed: it must be 1 to 64"):
        publish(data.versions, name, "1")
    with pytest.raises(AdapterError, match="version label .* is not allowed: it must be 1 to 64"):
        publish(data.versions, "a", name)
    assert not (tmp_path / "adapters").exists()


def test_reader_meets_only_whole_versions_while_another_thread_publishes(data: DataFolder) -> None:
    done = threading.Event()
    torn: list[PublishedVersion] = []

    def read() -> None:
        while not done.is_set():
            for version in data.versions.published("a"):
                is_whole = (version.folder / "deep" / "weights").is_file()
                # A version may be dropped while it is looked at, but its row goes first.
                if not is_whole and version in data.versions.published("a"):
                    torn.append(version)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(10):
            publish(data.versions, "a", str(number))
    finally:
        done.set()
        reader.join()
    assert torn == []
