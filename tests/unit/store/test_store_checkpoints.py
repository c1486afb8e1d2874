from pathlib import Path

import pytest

from collm.errors import AdapterError
from collm.store.checkpoints import CheckpointStore
from factories.store_writer import content, writer


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "training")


def save(store: CheckpointStore, *numbers: int) -> None:
    for number in numbers:
        store.save("a", writer(number), {"step": number})


def loaded_step(store: CheckpointStore) -> int | None:
    checkpoint = store.load("a")
    if checkpoint is None:
        return None
    for name, text in content(checkpoint.meta["step"]).items():
        assert (checkpoint.folder / name).read_text() == text
    return int(checkpoint.meta["step"])


def test_nothing_is_loaded_before_the_first_save(store: CheckpointStore) -> None:
    assert store.load("a") is None


def test_latest_checkpoint_is_loaded_and_only_the_one_before_is_kept(
    store: CheckpointStore, tmp_path: Path
) -> None:
    save(store, *range(1, 13))
    assert loaded_step(store) == 12
    assert sorted(path.name for path in (tmp_path / "training" / "a").iterdir()) == ["11", "12"]


def test_adapters_have_checkpoints_of_their_own(store: CheckpointStore) -> None:
    save(store, 1)
    store.save("b", writer(5), {"step": 5})
    assert loaded_step(store) == 1
    other = store.load("b")
    assert other is not None
    assert other.meta == {"step": 5}


def test_discarded_checkpoints_are_gone_and_new_ones_follow(store: CheckpointStore) -> None:
    save(store, 1, 2)
    store.save("b", writer(5), {"step": 5})
    store.discard("a")
    assert store.load("a") is None
    assert store.load("b") is not None
    save(store, 3)
    assert loaded_step(store) == 3


def test_kept_place_is_the_latest_meta_without_a_state(store: CheckpointStore) -> None:
    store.keep_place("a")
    assert store.load("a") is None
    save(store, 1, 2)
    for _ in range(2):
        store.keep_place("a")
        checkpoint = store.load("a")
        assert checkpoint is not None
        assert checkpoint.meta == {"step": 2}
        assert not list(checkpoint.folder.iterdir())
    assert len(list(checkpoint.folder.parents[1].iterdir())) == 1
    save(store, 3)
    assert loaded_step(store) == 3


@pytest.mark.parametrize("name", ["state/deep/weights", "meta.json", "checksums.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "changed"])
def test_damaged_checkpoint_falls_back_to_the_one_before(
    store: CheckpointStore, tmp_path: Path, name: str, damage: str
) -> None:
    save(store, 1, 2)
    path = tmp_path / "training" / "a" / "2" / name
    text = path.read_text()
    if damage == "gone":
        path.unlink()
    else:
        path.write_text(text[: len(text) // 2] if damage == "cut" else text.replace("2", "3"))
    assert loaded_step(store) == 1
    save(store, 4)
    assert loaded_step(store) == 4


def test_unreadable_checkpoints_are_no_checkpoint(store: CheckpointStore, tmp_path: Path) -> None:
    save(store, 1)
    (tmp_path / "training" / "a" / "1" / "state" / "config.json").write_text("?")
    assert loaded_step(store) is None


def test_failed_save_keeps_the_checkpoints_there_are(store: CheckpointStore) -> None:
    def fail(folder: Path) -> None:
        writer(3)(folder)
        raise OSError("disk full")

    save(store, 1, 2)
    with pytest.raises(OSError, match="disk full"):
        store.save("a", fail, {"step": 3})
    assert loaded_step(store) == 2


def test_adapter_name_cannot_leave_the_folder(store: CheckpointStore) -> None:
    with pytest.raises(AdapterError, match=r"adapter name '\.\./x' is not allowed"):
        store.save("../x", writer(1), {})
    with pytest.raises(AdapterError, match="is not allowed"):
        store.load("..")
