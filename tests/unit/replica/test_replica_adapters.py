"""Adapters in, out and back, against a running replica of a tiny model."""

import asyncio
import io
import json
import shutil
import zipfile

import pytest
import torch
from safetensors.torch import load_file, save_file

from collm.errors import (
    AdapterError,
    CollmError,
    RequestError,
    StateError,
    UnknownAdapterError,
)
from collm.lora.config import LoraConfig
from collm.lora.peft_folder import PEFT_CONFIG, PEFT_WEIGHTS, load_peft, save_peft
from collm.model.checkpoint import Checkpoint
from collm.replica.config import ReplicaConfig
from collm.replica.inbox import Stop
from factories.checkpoints import tiny_checkpoint
from factories.engines import random_adapter
from factories.replicas import open_tiny_replica, publish_on_disk


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(scope="module")
def spec(checkpoint):
    return Checkpoint(checkpoint).spec


class Opened:
    """A replica that may load adapters from ``root``; ``tutor@1`` and ``tutor@2`` are served."""

    def __init__(self, checkpoint, folder, num_slots):
        self.root = folder / "imports"
        self.root.mkdir()
        publish_on_disk(checkpoint, folder / "data", 1, 2, 3, num_promoted=2)
        config = ReplicaConfig(
            data_dir=str(folder / "data"),
            threads=1,
            min_promotion_interval_s=0.0,
            import_root=str(self.root),
            slot_wait_s=0.05,
        )
        lora = LoraConfig(max_rank=4, num_slots=num_slots)
        self.replica = open_tiny_replica(checkpoint, folder / "data", replica=config, lora=lora)
        self.desk = self.replica.adapters

    def do(self, *calls):
        """Run what the desk is asked, all at once, and return the last answer."""

        async def gather():
            return await asyncio.wait_for(asyncio.gather(*calls), 60)

        return asyncio.run(gather())[-1]

    def active(self):
        return {i.version for i in self.replica.client.versions() if i.is_active}

    def loaded(self):
        return {i.version for i in self.replica.client.versions()}

    def put(self, spec, name="copy", seed=9, rank=4):
        folder = self.root / name
        folder.mkdir()
        save_peft(random_adapter(spec, rank, seed), folder, "tiny")
        return folder


@pytest.fixture
def opened(checkpoint, tmp_path):
    opened = Opened(checkpoint, tmp_path, num_slots=6)
    yield opened
    opened.replica.close()


def test_export_is_a_zip_of_the_folder_and_comes_back_as_it_was(opened, spec, tmp_path):
    content = opened.do(opened.desk.export("tutor@3"))
    zipfile.ZipFile(io.BytesIO(content)).extractall(tmp_path / "copy")
    copied = load_peft(tmp_path / "copy", spec)
    assert torch.equal(copied.flat, random_adapter(spec, seed=3).flat)
    with pytest.raises(UnknownAdapterError, match="tutor@9"):
        opened.do(opened.desk.export("tutor@9"))


def test_import_is_the_next_number_and_waits_for_promotion(opened, spec):
    folder = opened.put(spec)
    config, weights = (folder / PEFT_CONFIG).read_bytes(), folder / PEFT_WEIGHTS
    info = opened.do(opened.desk.import_folder("tutor", config, weights, promote=False))
    assert (info.version, info.is_active, info.slot) == ("tutor@4", False, None)
    assert opened.active() == {"tutor@2"}
    info = opened.do(opened.desk.promote("tutor@4"))
    assert (info.is_active, info.metadata) == (True, {"origin": "import"})
    (decision,) = opened.do(opened.desk.history("tutor"))[-1:]
    assert (decision.kind, decision.version) == ("promotion", "tutor@4")


def test_import_can_be_promoted_at_once_under_a_new_name(opened, spec):
    folder = opened.put(spec)
    config, weights = (folder / PEFT_CONFIG).read_bytes(), folder / PEFT_WEIGHTS
    info = opened.do(opened.desk.import_folder("new", config, weights, promote=True))
    assert (info.version, info.is_active) == ("new@1", True)
    assert "new" in [card.id for card in opened.replica.client.models()]


def spoil_rank(folder):
    config = json.loads((folder / PEFT_CONFIG).read_text())
    (folder / PEFT_CONFIG).write_text(json.dumps(config | {"r": 3}))


def spoil_with_nan(folder):
    tensors = load_file(folder / PEFT_WEIGHTS)
    next(iter(tensors.values()))[0, 0] = float("nan")
    save_file(tensors, folder / PEFT_WEIGHTS)


def spoil_by_size_of_numbers(folder):
    """Finite in every factor, and not in what they do."""
    tensors = load_file(folder / PEFT_WEIGHTS)
    save_file({k: v * 1e25 for k, v in tensors.items()}, folder / PEFT_WEIGHTS)


def spoil_names(folder):
    tensors = load_file(folder / PEFT_WEIGHTS)
    save_file({f"other.{k}": v for k, v in tensors.items()}, folder / PEFT_WEIGHTS)


def spoil_shape(folder):
    tensors = load_file(folder / PEFT_WEIGHTS)
    save_file({k: v[:, :1].contiguous() for k, v in tensors.items()}, folder / PEFT_WEIGHTS)


def spoil_by_pickle(folder):
    weights = load_file(folder / PEFT_WEIGHTS)
    (folder / PEFT_WEIGHTS).unlink()
    torch.save(weights, folder / "adapter_model.bin")


def spoil_base(folder):
    tensors = load_file(folder / PEFT_WEIGHTS)
    save_file(tensors, folder / PEFT_WEIGHTS, metadata={"collm.base_digest": "another"})


def spoil_size(folder):
    with (folder / PEFT_WEIGHTS).open("r+b") as file:
        file.truncate(1 << 30)  # sparse


def spoil_config(folder):
    (folder / PEFT_CONFIG).write_text("[" * 10_000)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (spoil_rank, "its configuration says 3"),
        (spoil_with_nan, "non-finite"),
        (spoil_by_size_of_numbers, r"too large in layers\.0\..*could overflow.*allowed are 10000"),
        (spoil_names, "does not have"),
        (spoil_shape, "this model needs"),
        (spoil_by_pickle, "is missing|only safetensors"),
        (spoil_base, "made for base another"),
        (spoil_size, "too large"),
        (spoil_config, "cannot be read"),
    ],
)
def test_malformed_folder_is_refused_and_changes_nothing(opened, spec, spoil, reason):
    folder = opened.put(spec)
    spoil(folder)
    with pytest.raises(AdapterError, match=reason) as raised:
        opened.do(opened.desk.load("new", "copy", in_place=False))
    assert "/tmp" not in str(raised.value)
    assert opened.active() == {"tutor@2"}
    assert {item.adapter for item in opened.do(opened.desk.published())} == {"tutor"}


def test_adapter_beyond_the_largest_rank_is_refused(opened, spec):
    opened.put(spec, rank=8)
    with pytest.raises(AdapterError, match="rank 8; lora.max_rank allows up to 4"):
        opened.do(opened.desk.load("new", "copy", in_place=False))


@pytest.mark.parametrize("name", ["tiny", "a@1", "../x", "", "a" * 65])
def test_name_that_is_not_allowed_is_refused(opened, spec, name):
    opened.put(spec)
    with pytest.raises(AdapterError, match="is not allowed"):
        opened.do(opened.desk.load(name, "copy", in_place=False))


def test_load_serves_a_folder_and_refuses_the_same_name_again(opened, spec):
    folder = opened.put(spec)
    info = opened.do(opened.desk.load("new", str(folder), in_place=False))
    assert (info.version, info.is_active) == ("new@1", True)
    shutil.rmtree(folder)  # what is served is read from the disk no more
    opened.put(spec, seed=8)
    with pytest.raises(RequestError, match="'new' has already been loaded"):
        opened.do(opened.desk.load("new", "copy", in_place=False))
    assert "new@1" in opened.active()


def test_load_in_place_takes_new_content_and_ignores_the_same(opened, spec):
    opened.put(spec, "first")
    opened.put(spec, "second", seed=8)
    opened.do(opened.desk.load("new", "first", in_place=False))
    assert opened.do(opened.desk.load("new", "first", in_place=True)).version == "new@1"
    assert opened.do(opened.desk.load("new", "second", in_place=True)).version == "new@2"
    assert len(opened.do(opened.desk.published())) == 5


def test_loads_of_one_adapter_take_turns(opened, spec):
    for seed in (7, 8, 9):
        opened.put(spec, f"copy-{seed}", seed)
    loads = [opened.desk.load("new", f"copy-{seed}", in_place=True) for seed in (7, 8, 9)]
    opened.do(*loads)
    assert {v for v in opened.active() if v.startswith("new")} == {"new@3"}


def test_concurrent_loads_without_in_place_load_it_once(opened, spec):
    opened.put(spec)

    async def load():
        try:
            return (await opened.desk.load("new", "copy", in_place=False)).version
        except RequestError as error:
            return error.code

    async def race():
        return await asyncio.gather(load(), load(), load())

    assert sorted(asyncio.run(race())) == ["adapter_loaded", "adapter_loaded", "new@1"]


def test_unload_frees_the_slots_and_a_load_may_use_the_name_again(opened, spec):
    opened.put(spec)
    opened.do(opened.desk.unload("tutor"))
    assert opened.loaded() == set()
    with pytest.raises(UnknownAdapterError, match="not loaded"):
        opened.do(opened.desk.unload("tutor"))
    assert opened.do(opened.desk.load("tutor", "copy", in_place=False)).version == "tutor@4"


def test_load_under_which_no_slot_becomes_free_says_what_holds_them(checkpoint, spec, tmp_path):
    opened = Opened(checkpoint, tmp_path, num_slots=3)
    try:
        opened.do(opened.desk.pin("tutor@3"))
        opened.put(spec)
        with pytest.raises(StateError, match=r"tutor@2 \(active\), tutor@3 \(pinned\)"):
            opened.do(opened.desk.load("new", "copy", in_place=False))
        opened.do(opened.desk.unpin("tutor@3"))
        assert opened.do(opened.desk.promote("new@1")).is_active
    finally:
        opened.replica.close()


def test_pinned_version_is_loaded_listed_and_comes_back_after_a_restart(
    opened, checkpoint, tmp_path
):
    opened.do(opened.desk.pin("tutor@3"))
    assert opened.loaded() == {"tutor@1", "tutor@2", "tutor@3"}
    assert opened.do(opened.desk.pinned()) == {"tutor@3"}
    opened.replica.close()
    opened.replica = open_tiny_replica(checkpoint, tmp_path / "data")
    opened.desk = opened.replica.adapters
    assert opened.loaded() == {"tutor@1", "tutor@2", "tutor@3"}
    assert "tutor@3" in [card.id for card in opened.replica.client.models()]
    opened.do(opened.desk.unpin("tutor@3"))
    assert opened.do(opened.desk.pinned()) == frozenset()
    assert opened.loaded() == {"tutor@1", "tutor@2"}
    for call in (opened.desk.pin, opened.desk.unpin):
        with pytest.raises(UnknownAdapterError):
            opened.do(call("tutor@9"))


def test_unloaded_adapter_stays_unloaded_after_a_restart(opened, checkpoint, tmp_path):
    opened.do(opened.desk.pin("tutor@3"))
    opened.do(opened.desk.unload("tutor"))
    opened.replica.close()
    opened.replica = open_tiny_replica(checkpoint, tmp_path / "data")
    assert opened.loaded() == set()
    assert opened.do(opened.replica.adapters.promote("tutor@1")).is_active


def test_history_and_rollback_of_an_unknown_adapter_list_what_exists(opened):
    for call in (opened.desk.history, opened.desk.rollback):
        with pytest.raises(UnknownAdapterError, match="'nobody' does not exist; available: tutor"):
            opened.do(call("nobody"))


def test_desk_does_not_wait_for_a_loop_that_has_ended(opened):
    opened.replica.inbox.put(Stop())
    opened.replica.thread.join(60)
    with pytest.raises(CollmError, match="step loop has ended"):
        opened.do(opened.desk.rollback("tutor"))
