"""Any mix of staging, promotion, rollback, unloading and pins: slots are conserved, pins hold."""

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor

from collm.errors import UnknownAdapterError
from collm.lora.bank import AdapterBank
from collm.lora.layout import lora_layout
from collm.lora.state import AdapterState
from collm.lora.store import AdapterStore
from collm.model.spec import ModelSpec
from collm.types import BASE, Binding, VersionId
from factories.checkpoints import tiny_config

SMALL = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 16}
SPEC = ModelSpec.from_config(
    tiny_config("llama", num_attention_heads=2, num_key_value_heads=1, **SMALL).to_dict()
)
LAYOUT = lora_layout(SPEC, 1)
NAMES = st.sampled_from(["a", "b"])


def state_of(number: int) -> AdapterState:
    """Every version is filled with its own number, so that a slot shows whose it is."""
    return AdapterState(LAYOUT, torch.full((LAYOUT.num_parameters,), float(number)))


class StoreMachine(RuleBasedStateMachine):
    @initialize(num_slots=st.integers(2, 6))
    def start(self, num_slots):
        self.bank = AdapterBank(LAYOUT, num_slots, torch.float32, torch.device("cpu"))
        self.store = AdapterStore(self.bank, "base", self.evict)
        self.pins: list[Binding] = []
        self.num_versions = 0
        self.history: dict[str, list[VersionId]] = {"a": [], "b": []}  # held, active
        self.first: dict[str, VersionId] = {}
        self.staged: dict[str, VersionId] = {}
        self.freed: set[VersionId] = set()

    def evict(self, version):
        assert version not in [binding.version for binding in self.pins], "freed while pinned"
        assert version not in self.freed
        self.freed.add(version)

    def loaded(self) -> set[VersionId]:
        return {info.version for info in self.store.infos()}

    def slot_value(self, slot: int) -> Tensor:
        return self.bank.factors(0, "down").a[slot].unique()

    @rule(name=NAMES)
    def stage(self, name):
        before = self.store.infos()
        number = self.num_versions + 1
        version = VersionId(f"{name}@{number}")
        if self.store.try_stage(name, version, state_of(number)):
            self.num_versions = number
            self.staged[name] = version
        else:
            assert self.store.num_free_slots == 0
            assert self.store.infos() == before

    @rule(name=NAMES, data=st.data())
    def stage_again(self, name, data):
        known = sorted(v for v in self.loaded() if v.startswith(f"{name}@"))
        if known:
            version = data.draw(st.sampled_from(known))
            assert self.store.try_stage(name, version, state_of(int(version.split("@")[1])))
            self.staged[name] = version

    @precondition(lambda self: self.staged)
    @rule(data=st.data())
    def promote_staged(self, data):
        name = data.draw(st.sampled_from(sorted(self.staged)))
        version = self.staged.pop(name)
        self.store.promote(version)
        if not self.history[name]:
            self.first[name] = version
        if self.history[name][-1:] != [version]:
            self.history[name] = [*self.history[name][-1:], version]
        assert self.store.resolve(name) == self.store.resolve(version) == version

    @rule(name=NAMES)
    def rollback(self, name):
        if len(self.history[name]) == 2:
            self.history[name].pop()
            assert self.store.rollback(name) == self.history[name][0]
            return
        if self.history[name] and self.history[name] == [self.first[name]]:
            self.history[name].clear()
            assert self.store.rollback(name) == BASE
            return
        try:
            self.store.rollback(name)
        except UnknownAdapterError:
            return
        raise AssertionError("rolled back to nothing")

    @rule(name=NAMES)
    def unload(self, name):
        if self.history[name]:
            self.store.unload(name)
            self.history[name].clear()
            self.staged.pop(name, None)
            assert not [n for n in self.store.names() if n.startswith(name + "@") or n == name]

    @rule(data=st.data())
    def pin(self, data):
        model = data.draw(st.sampled_from(self.store.names()))
        binding = self.store.pin(model)
        self.pins.append(binding)
        if binding.version != BASE:
            expected = self.history[model][-1] if model in self.history else model
            assert binding.version == expected

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data):
        self.store.unpin(self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1))))

    @invariant()
    def exactly_what_is_needed_is_loaded(self):
        pinned = {binding.version for binding in self.pins} - {BASE}
        kept = {version for versions in self.history.values() for version in versions}
        assert self.loaded() == pinned | kept | set(self.staged.values())
        self.freed -= self.loaded()  # what came back may be freed again

    @invariant()
    def slots_are_conserved_and_hold_their_version(self):
        infos = self.store.infos()
        slots = [info.slot for info in infos]
        assert len(set(slots)) == len(slots)
        assert len(slots) + self.store.num_free_slots == self.bank.num_slots
        for info in infos:
            assert self.slot_value(info.slot).tolist() == [float(info.version.split("@")[1])]
            assert info.num_pins == [b.version for b in self.pins].count(info.version)
        for binding in self.pins:
            assert binding.version == BASE or binding.slot in slots


def test_any_mix_of_operations_conserves_slots_and_keeps_pins():
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
