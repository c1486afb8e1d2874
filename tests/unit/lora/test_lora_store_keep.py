"""Versions that an operator keeps, what holds the slots, and what an unload leaves behind."""

import gc
import weakref

import pytest
import torch

from collm.errors import AdapterError, UnknownAdapterError
from collm.lora.bank import AdapterBank
from collm.lora.layout import lora_layout
from collm.lora.store import AdapterStore
from collm.model.spec import ModelSpec
from collm.types import BASE, VersionId
from factories.checkpoints import tiny_config
from factories.engines import random_adapter

SPEC = ModelSpec.from_config(tiny_config("llama", num_hidden_layers=1).to_dict())
V1, V2, V3, V4 = (VersionId(f"a@{n}") for n in (1, 2, 3, 4))


def state(seed):
    return random_adapter(SPEC, 1, seed)


class Loaded:
    def __init__(self, num_slots):
        bank = AdapterBank(lora_layout(SPEC, 2), num_slots, torch.float32, torch.device("cpu"))
        self.freed = []
        self.store = AdapterStore(bank, "tiny", self.freed.append)

    def publish(self, version, seed=0):
        assert self.store.try_stage(version.split("@")[0], version, state(seed))
        self.store.promote(version)

    def versions(self):
        return {info.version for info in self.store.infos()}


@pytest.fixture
def loaded():
    return Loaded(num_slots=4)


def test_kept_version_outlives_promotions_until_it_is_released(loaded):
    loaded.publish(V1)
    assert loaded.store.try_keep("a", V1, state(0))
    for seed, version in enumerate((V2, V3, V4), 1):
        loaded.publish(version, seed)
    assert loaded.versions() == {V1, V3, V4}
    assert loaded.store.resolve("a@1") == V1
    loaded.store.release(V1)
    assert loaded.versions() == {V3, V4}
    assert V1 in loaded.freed
    loaded.store.release(V1)


def test_version_that_was_never_promoted_can_be_kept_and_named(loaded):
    assert loaded.store.try_keep("b", VersionId("b@7"), state(1))
    assert loaded.store.resolve("b@7") == "b@7"
    with pytest.raises(UnknownAdapterError):
        loaded.store.resolve("b")
    loaded.publish(VersionId("b@8"), 2)
    loaded.store.promote(VersionId("b@7"))
    assert loaded.store.active("b") == "b@7"


def test_keeping_needs_a_free_slot_and_the_same_content(loaded):
    full = Loaded(num_slots=2)
    full.publish(V1)
    full.publish(V2, 1)
    assert not full.store.try_keep("a", V3, state(3))
    assert full.versions() == {V1, V2}
    with pytest.raises(AdapterError, match="exists already with other content"):
        full.store.try_keep("a", V1, state(9))


def test_released_version_that_a_request_uses_stays_until_that_ends(loaded):
    loaded.store.try_keep("a", V1, state(1))
    binding = loaded.store.pin("a@1")
    loaded.store.release(V1)
    assert loaded.versions() == {V1}
    loaded.store.unpin(binding)
    assert loaded.versions() == set()
    assert loaded.store.num_free_slots == 4


def test_occupants_say_what_each_slot_is_held_for(loaded):
    loaded.publish(V1)
    loaded.publish(V2, 1)
    loaded.store.pin("a@2")
    loaded.store.try_stage("a", V3, state(3))
    loaded.store.try_keep("b", VersionId("b@1"), state(4))
    assert loaded.store.occupants() == (
        "a@1 (held for rollback), a@2 (active, 1 requests), a@3 (staged), b@1 (pinned)"
    )


def test_unload_frees_kept_versions_slots_and_host_memory_when_the_last_request_ends(loaded):
    loaded.publish(V1)
    loaded.publish(V2, 1)
    loaded.store.try_keep("a", V1, state(0))
    binding = loaded.store.pin("a")
    factors = weakref.ref(loaded.store.state(V2).flat)
    loaded.store.unload("a")
    for name in ("a", "a@1", "a@2"):
        with pytest.raises(UnknownAdapterError):
            loaded.store.resolve(name)
    assert loaded.versions() == {V2}
    loaded.store.unpin(binding)
    assert loaded.store.num_free_slots == 4
    gc.collect()
    assert factors() is None


def test_adapter_with_nothing_but_a_kept_version_can_be_unloaded(loaded):
    loaded.store.try_keep("a", V1, state(1))
    loaded.store.unload("a")
    assert loaded.versions() == set()
    with pytest.raises(UnknownAdapterError, match="'a' is not loaded"):
        loaded.store.unload("a")


def test_adapter_that_is_no_longer_learned_names_nothing(loaded):
    loaded.store.announce("a")
    assert loaded.store.resolve("a") == BASE
    loaded.store.retract("a")
    with pytest.raises(UnknownAdapterError):
        loaded.store.resolve("a")
    loaded.publish(V1)
    loaded.store.announce("a")
    loaded.store.retract("a")
    assert loaded.store.resolve("a") == V1


def test_repeated_loads_and_unloads_grow_nothing(loaded):
    for number in range(50):
        version = VersionId(f"a@{number}")
        loaded.publish(version, number % 3)
        loaded.store.unload("a")
        assert loaded.store.num_free_slots == 4
    assert loaded.versions() == set()
    assert loaded.store.names() == ("tiny",)
