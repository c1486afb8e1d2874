from collections.abc import Iterator
from pathlib import Path

import pytest

from collm.errors import UnknownAdapterError
from collm.store.data_folder import DataFolder
from collm.types import VersionId

ONE, TWO = VersionId("a@1"), VersionId("a@2")


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataFolder]:
    with DataFolder(tmp_path, max_versions=2, now_s=lambda: 0.0) as opened:
        publish(opened, "1", "2")
        yield opened


def publish(data: DataFolder, *labels: str) -> None:
    for label in labels:
        data.versions.publish(
            "a", label, digest=label, base_digest="b", rank=4, metadata={}, write=lambda _: None
        )


def published(data: DataFolder) -> list[str]:
    return [version.version for version in data.versions.published()]


def test_pinned_version_is_kept_however_old_until_it_is_unpinned(data: DataFolder) -> None:
    data.pins.add(ONE)
    publish(data, "3", "4", "5")
    assert published(data) == ["a@1", "a@4", "a@5"]
    assert data.versions.get(ONE).folder.is_dir()
    folder = data.versions.get(ONE).folder
    data.pins.remove(ONE)
    publish(data, "6")
    assert published(data) == ["a@5", "a@6"]
    assert not folder.exists()


def test_pins_are_listed_in_order_of_publication_and_survive_a_restart(
    data: DataFolder, tmp_path: Path
) -> None:
    assert data.pins.all() == ()
    for version in (TWO, ONE, TWO):
        data.pins.add(version)
    assert data.pins.all() == (ONE, TWO)
    data.close()
    with DataFolder(tmp_path, max_versions=2, now_s=lambda: 0.0) as reopened:
        assert reopened.pins.all() == (ONE, TWO)


def test_unpinning_twice_is_harmless(data: DataFolder) -> None:
    data.pins.add(ONE)
    for _ in range(2):
        data.pins.remove(ONE)
    assert data.pins.all() == ()


def test_unpublished_version_is_not_pinned(data: DataFolder) -> None:
    with pytest.raises(UnknownAdapterError, match="'a@9' is not published"):
        data.pins.add(VersionId("a@9"))
    assert data.pins.all() == ()
