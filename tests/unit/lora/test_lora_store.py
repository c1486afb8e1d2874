"""The life of a version: staged, promoted, held, pinned, freed."""

from collections.abc import Callable

import pytest
import torch

from collm.errors import AdapterError, UnknownAdapterError
from collm.lora.bank import AdapterBank
from collm.lora.layout import lora_layout
from collm.lora.state import AdapterState
from collm.lora.store import AdapterStore
from collm.model.spec import ModelSpec
from collm.types import BASE, BASE_SLOT, Binding, VersionId
from factories.checkpoints import tiny_config
from factories.engines import random_adapter

SPEC = ModelSpec.from_config(tiny_config("llama", num_hidden_layers=1).to_dict())
V1, V2, V3, V4 = (VersionId(f"a@{n}") for n in (1, 2, 3, 4))


def state(seed: int, rank: int = 1) -> AdapterState:
    return random_adapter(SPEC, rank, seed)


class Loaded:
    """A store with its bank, and the versions whose blocks it had evicted."""

    def __init__(self, num_slots: int = 4, max_rank: int = 2) -> None:
        self.bank = AdapterBank(
            lora_layout(SPEC, max_rank), num_slots, torch.float32, torch.device("cpu")
        )
        self.freed: list[VersionId] = []
        self.store = AdapterStore(self.bank, "tiny", self._on_freed)
        self.on_freed: Callable[[], None] = lambda: None

    def _on_freed(self, version: VersionId) -> None:
        self.freed.append(version)
        self.on_freed()

    def publish(self, version: VersionId, seed: int = 0) -> None:
        assert self.store.try_stage(version.split("@")[0], version, state(seed))
        self.store.promote(version)

    def versions(self) -> set[str]:
        return {info.version for info in self.store.infos()}


@pytest.fixture
def loaded() -> Loaded:
    return Loaded()


def test_base_is_served_without_a_slot(loaded):
    binding = loaded.store.pin("tiny")
    assert binding == Binding(BASE, BASE_SLOT)
    loaded.store.unpin(binding)


@pytest.mark.parametrize("model", ["b", "a@9", "base", "", "a@", "@1", "tiny@1"])
def test_unknown_name_is_an_error_that_lists_what_exists(loaded, model):
    loaded.publish(V1)
    with pytest.raises(UnknownAdapterError, match=r"available: tiny, a, a@1$"):
        loaded.store.pin(model)


def test_name_means_the_active_version_and_label_that_very_one(loaded):
    loaded.publish(V1, 1)
    loaded.publish(V2, 2)
    assert loaded.store.resolve("a") == V2
    assert loaded.store.resolve("a@1") == V1
    assert loaded.store.active("a") == V2
    assert torch.equal(loaded.store.state(V1).flat, state(1).flat)


def test_staged_version_is_not_nameable_until_promoted(loaded):
    loaded.publish(V1)
    assert loaded.store.try_stage("a", V2, state(2))
    assert loaded.store.resolve("a") == V1
    with pytest.raises(UnknownAdapterError):
        loaded.store.resolve("a@2")
    assert loaded.store.names() == ("tiny", "a", "a@1")
    loaded.store.promote(V2)
    assert loaded.store.resolve("a") == loaded.store.resolve("a@2") == V2


def test_staged_version_gives_way_to_a_newer_one(loaded):
    loaded.publish(V1)
    loaded.store.try_stage("a", V2, state(2))
    loaded.store.try_stage("a", V3, state(3))
    assert loaded.freed == [V2]
    assert loaded.versions() == {V1, V3}
    with pytest.raises(UnknownAdapterError, match="a@2"):
        loaded.store.promote(V2)


def test_version_before_the_last_is_freed_by_a_promotion(loaded):
    for number, version in enumerate((V1, V2, V3)):
        loaded.publish(version, number)
    assert loaded.freed == [V1]
    with pytest.raises(UnknownAdapterError, match="available: tiny, a, a@2, a@3"):
        loaded.store.pin("a@1")


def test_pinned_version_survives_promotions_until_the_last_pin_drops(loaded):
    loaded.publish(V1, 1)
    first, second = loaded.store.pin("a"), loaded.store.pin("a@1")
    before = [t.clone() for t in loaded.bank.factors(0, "down").dense(first.slot)]
    for number, version in enumerate((V2, V3, V4)):
        loaded.publish(version, number)
    assert first == second == Binding(V1, first.slot)
    after = loaded.bank.factors(0, "down").dense(first.slot)
    assert all(map(torch.equal, before, after))
    loaded.store.unpin(first)
    assert V1 in loaded.versions()
    loaded.store.unpin(second)
    assert V1 not in loaded.versions()
    assert loaded.freed == [V2, V1]


def test_cached_blocks_are_evicted_before_the_slot_is_free(loaded):
    loaded.publish(V1)
    loaded.store.try_stage("a", V2, state(2))
    free_slots = []
    loaded.on_freed = lambda: free_slots.append(loaded.store.num_free_slots)
    loaded.store.try_stage("a", V3, state(3))
    assert free_slots == [2]
    assert loaded.store.num_free_slots == 2


def test_without_a_free_slot_staging_changes_nothing():
    loaded = Loaded(num_slots=2)
    loaded.publish(V1)
    loaded.publish(VersionId("b@1"))
    before = loaded.store.infos()
    assert not loaded.store.try_stage("a", V2, state(2))
    assert loaded.store.infos() == before
    assert loaded.freed == []


def test_without_a_free_slot_a_staged_version_still_gives_way():
    loaded = Loaded(num_slots=2)
    loaded.publish(V1)
    loaded.store.try_stage("a", V2, state(2))
    assert loaded.store.try_stage("a", V3, state(3))
    assert loaded.versions() == {V1, V3}


def test_a_candidate_stays_staged_when_its_successor_finds_no_slot():
    """Its slot would not become free: requests still use the version, staged once more."""
    loaded = Loaded(num_slots=3)
    loaded.publish(V1, 1)
    binding = loaded.store.pin("a")
    loaded.publish(V2, 2)
    loaded.publish(V3, 3)
    assert loaded.store.try_stage("a", V1, state(1))
    assert not loaded.store.try_stage("a", V4, state(4))
    loaded.store.unpin(binding)
    loaded.store.promote(V1)
    assert loaded.store.resolve("a") == V1


def test_staging_what_is_loaded_keeps_it_until_promoted(loaded):
    loaded.publish(V1, 1)
    binding = loaded.store.pin("a")
    loaded.publish(V2, 2)
    loaded.publish(V3, 3)  # only the pin holds version 1 now
    assert loaded.store.try_stage("a", V1, state(1))
    loaded.store.unpin(binding)
    loaded.store.promote(V1)
    assert loaded.store.resolve("a") == V1


def test_same_version_with_other_content_is_refused(loaded):
    loaded.publish(V1, 1)
    with pytest.raises(AdapterError, match="a@1 exists already"):
        loaded.store.try_stage("a", V1, state(2))
    assert loaded.store.try_stage("a", V1, state(1))
    assert loaded.store.num_free_slots == 3


@pytest.mark.parametrize("version", ["b@1", "a", "a@", "ab@1", "tiny"])
def test_version_of_another_name_is_refused(loaded, version):
    with pytest.raises(AdapterError, match="must be named a@LABEL"):
        loaded.store.try_stage("a", VersionId(version), state(1))


@pytest.mark.parametrize("adapter", ["", "a@1", "tiny"])
def test_adapter_name_that_would_be_ambiguous_is_refused(loaded, adapter):
    with pytest.raises(AdapterError, match="not allowed"):
        loaded.store.try_stage(adapter, VersionId(f"{adapter}@1"), state(1))


def test_state_that_does_not_fit_is_refused_and_takes_no_slot(loaded):
    other = ModelSpec.from_config(tiny_config("llama", intermediate_size=96).to_dict())
    deeper = ModelSpec.from_config(tiny_config("llama", num_hidden_layers=2).to_dict())
    not_finite = AdapterState(state(1).layout, torch.full_like(state(1).flat, torch.nan))
    cases = {
        "other shapes": [random_adapter(other, 1), random_adapter(deeper, 1)],
        r"rank 3; lora.max_rank allows up to 2": [state(1, rank=3)],
        "non-finite": [not_finite],
    }
    for message, bad_states in cases.items():
        for bad in bad_states:
            with pytest.raises(AdapterError, match=message):
                loaded.store.try_stage("a", V1, bad)
    assert loaded.store.num_free_slots == 4


def test_promoting_the_active_version_changes_nothing(loaded):
    loaded.publish(V1)
    loaded.publish(V2)
    loaded.store.promote(V2)
    assert loaded.store.rollback("a") == V1


def test_promoting_the_held_version_swaps_the_two(loaded):
    loaded.publish(V1)
    loaded.publish(V2)
    loaded.store.promote(V1)
    assert loaded.store.resolve("a") == V1
    assert loaded.store.rollback("a") == V2
    assert loaded.freed == [V1]


def test_rollback_returns_to_the_version_before_once(loaded):
    loaded.publish(V1)
    loaded.publish(V2)
    binding = loaded.store.pin("a")
    assert loaded.store.rollback("a") == V1
    assert loaded.store.resolve("a") == V1
    assert loaded.freed == [], "running requests keep the version that was rolled back"
    loaded.store.unpin(binding)
    assert loaded.freed == [V2]
    with pytest.raises(UnknownAdapterError, match="no earlier version"):
        loaded.store.rollback("b")


def test_rollback_of_the_first_version_returns_to_the_base(loaded):
    for is_announced in (True, False):
        if is_announced:
            loaded.store.announce("a")
        loaded.publish(V1)
        loaded.publish(V2)
        assert [loaded.store.rollback("a"), loaded.store.rollback("a")] == [V1, BASE]
        assert (loaded.store.active("a"), loaded.versions()) == (None, set())
        assert loaded.store.names() == (("tiny", "a") if is_announced else ("tiny",))
        with pytest.raises(UnknownAdapterError, match="no earlier version"):
            loaded.store.rollback("a")
        if is_announced:
            assert loaded.store.resolve("a") == BASE
            loaded.store.retract("a")
    with pytest.raises(UnknownAdapterError, match="'a' does not exist; available: tiny"):
        loaded.store.resolve("a")


def test_adapter_returns_to_the_base_from_whatever_it_serves_and_holds(loaded):
    loaded.store.announce("a")
    for number, version in enumerate((V1, V2, V3)):
        loaded.publish(version, number)
    binding = loaded.store.pin("a")
    for _ in range(2):
        loaded.store.return_to_base("a")
        assert (loaded.store.active("a"), loaded.store.resolve("a")) == (None, BASE)
    assert loaded.versions() == {V3}
    loaded.store.unpin(binding)
    assert loaded.store.num_free_slots == 4


def test_request_ends_on_the_first_version_after_it_was_taken_back(loaded):
    loaded.store.announce("a")
    loaded.publish(V1)
    binding = loaded.store.pin("a")
    assert loaded.store.rollback("a") == BASE
    assert loaded.freed == []
    loaded.store.unpin(binding)
    assert loaded.freed == [V1]


def test_rollback_to_a_later_version_goes_no_further(loaded):
    """What came before it is not here any more, and the base is not what came before it."""
    for number, version in enumerate((V1, V2, V3)):
        loaded.publish(version, number)
    assert loaded.store.rollback("a") == V2
    with pytest.raises(UnknownAdapterError, match="no earlier version"):
        loaded.store.rollback("a")
    assert loaded.store.active("a") == V2


def test_unloaded_adapter_takes_no_new_requests_and_goes_with_its_last_pin(loaded):
    loaded.publish(V1)
    loaded.publish(V2)
    loaded.store.try_stage("a", V3, state(3))
    binding = loaded.store.pin("a")
    loaded.store.unload("a")
    for model in ("a", "a@1", "a@2", "a@3"):
        with pytest.raises(UnknownAdapterError, match="available: tiny$"):
            loaded.store.pin(model)
    assert loaded.versions() == {V2}
    loaded.store.unpin(binding)
    assert loaded.store.num_free_slots == 4
    with pytest.raises(UnknownAdapterError, match="not loaded"):
        loaded.store.unload("a")


def test_unloaded_adapter_can_come_back_while_it_is_still_pinned(loaded):
    loaded.publish(V1, 1)
    binding = loaded.store.pin("a")
    loaded.store.unload("a")
    loaded.publish(V1, 1)
    assert loaded.store.pin("a") == binding


def test_announced_adapter_names_the_base_until_its_first_promotion(loaded):
    loaded.store.announce("a")
    assert loaded.store.names() == ("tiny", "a")
    before = loaded.store.pin("a")
    assert before == Binding(BASE, BASE_SLOT)
    assert loaded.store.try_stage("a", V1, state(1))
    assert loaded.store.resolve("a") == BASE, "a staged version serves nobody"
    loaded.store.promote(V1)
    assert loaded.store.resolve("a") == V1
    assert loaded.store.names() == ("tiny", "a", "a@1")
    loaded.store.unpin(before)
    assert loaded.versions() == {V1}


def test_announced_adapter_has_no_versions_to_name_or_unload(loaded):
    loaded.store.announce("a")
    with pytest.raises(UnknownAdapterError, match="available: tiny, a$"):
        loaded.store.pin("a@1")
    with pytest.raises(UnknownAdapterError, match="not loaded"):
        loaded.store.unload("a")
    assert loaded.store.active("a") is None


def test_announcing_a_served_adapter_changes_nothing_and_unloading_takes_the_name_away(loaded):
    loaded.publish(V1)
    loaded.store.announce("a")
    assert loaded.store.resolve("a") == V1
    loaded.store.unload("a")
    with pytest.raises(UnknownAdapterError, match="available: tiny$"):
        loaded.store.pin("a")


@pytest.mark.parametrize("adapter", ["", "a@1", "tiny"])
def test_ambiguous_name_cannot_be_announced(loaded, adapter):
    with pytest.raises(AdapterError, match="not allowed"):
        loaded.store.announce(adapter)


def test_infos_tell_what_is_loaded(loaded):
    loaded.publish(V1, 1)
    loaded.store.try_stage("a", V2, state(2, rank=2), {"source": "round 7"})
    binding = loaded.store.pin("a")
    first, second = loaded.store.infos()
    assert (first.version, first.slot, first.num_pins, first.is_active, first.rank) == (
        V1, binding.slot, 1, True, 1,
    )  # fmt: skip
    assert first.digest == state(1).digest()
    assert (second.version, second.is_active, second.rank) == (V2, False, 2)
    assert second.metadata == {"source": "round 7"}
