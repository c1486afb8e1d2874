"""A model fetched from a hub that runs in this process; no network."""

from functools import partial

import pytest
from huggingface_hub import snapshot_download

from collm.errors import ModelError
from collm.model import sources
from collm.model.checkpoint import Checkpoint
from collm.model.config import ModelConfig
from collm.model.hub_id import HubId, parse_hub_id
from collm.model.sources import find_checkpoint
from factories.checkpoints import tiny_checkpoint
from factories.fake_hub import FakeHub, files_of, running_hub

UNWANTED = {
    "consolidated.safetensors": b"the same weights again",
    "original/consolidated.00.safetensors": b"and again",
    "onnx/config.json": b"{}",
    "pytorch_model.bin": b"and again",
    "README.md": b"words",
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    main, tuned = (
        files_of(tiny_checkpoint(tmp_path / name, "llama", seed=seed))
        for seed, name in enumerate(("main", "tuned"))
    )
    hub = FakeHub("someone/tiny", {"main": main | UNWANTED, "refs/pr/1": tuned | UNWANTED})
    with running_hub(hub) as url:
        fetch = partial(snapshot_download, endpoint=url, cache_dir=tmp_path / "hub")
        monkeypatch.setattr(sources, "snapshot_download", fetch)
        yield hub


def test_model_comes_from_the_hub_once_without_the_files_that_nobody_reads(hub, tmp_path):
    folder = find_checkpoint("someone/tiny", cache_dir=tmp_path)
    Checkpoint(folder).verify()
    assert set(hub.fetched) == set(hub.files["main"]) - set(UNWANTED)
    num_fetched = len(hub.fetched)
    assert find_checkpoint("someone/tiny", cache_dir=tmp_path) == folder
    assert len(hub.fetched) == num_fetched


@pytest.mark.parametrize("by_commit", [False, True], ids=["branch", "commit"])
def test_a_revision_behind_the_name_chooses_the_files(hub, tmp_path, by_commit):
    revision = hub.commit("refs/pr/1") if by_commit else "refs/pr/1"
    folder = find_checkpoint(f"someone/tiny@{revision}", cache_dir=tmp_path)
    weights = (folder / "model.safetensors").read_bytes()
    assert weights == hub.files["refs/pr/1"]["model.safetensors"]
    assert weights != hub.files["main"]["model.safetensors"]


def test_a_revision_that_is_not_there_is_named(hub, tmp_path):
    with pytest.raises(ModelError, match="'someone/tiny' from the hub at revision 'gone'"):
        find_checkpoint("someone/tiny@gone", cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("org/model-1.5", HubId("org/model-1.5", None)),
        ("org/model@v2.0", HubId("org/model", "v2.0")),
        ("org/model@refs/pr/1", HubId("org/model", "refs/pr/1")),
        ("org/model@", None),
        ("model@v2", None),
        ("./org/model", None),
        ("a/b/c", None),
    ],
)
def test_hub_ids_are_told_from_other_sources(source, expected):
    assert parse_hub_id(source) == expected


def test_model_is_served_by_its_name_without_the_revision():
    assert ModelConfig(source="org/model@refs/pr/1").served_name == "model"
    assert ModelConfig(source="/models/tiny@2").served_name == "tiny@2"
