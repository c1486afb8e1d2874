"""What is done to a whole adapter between two steps wakes no other threads."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from collm.lora.bank import AdapterBank
from collm.lora.layout import lora_layout
from collm.lora.shadow import Shadow
from collm.lora.state import initial_state
from collm.model.spec import ModelSpec
from factories.checkpoints import tiny_config

SPEC = ModelSpec.from_config(tiny_config("qwen3").to_dict())
CPU = torch.device("cpu")
LAYOUT = lora_layout(SPEC, 4)


class ThreadsOfCopies(TorchDispatchMode):
    """Notes with how many threads values were copied, multiplied and added up."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in {torch.ops.aten.copy_, torch.ops.aten.mul_, torch.ops.aten.sum}:
            self.seen.add(torch.get_num_threads())
        return func(*args, **(kwargs or {}))


@pytest.fixture
def several_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("what", ["load", "check_finite", "state", "reset", "refresh"])
def test_one_thread_does_it_and_the_others_are_there_afterwards(what, several_threads):
    state = initial_state(LAYOUT, 0)
    bank, shadow = AdapterBank(LAYOUT, 2, torch.float32, CPU), shadow_of(state)
    act = {
        "load": lambda: bank.load(1, state),
        "check_finite": state.check_finite,
        "state": shadow.state,
        "reset": lambda: shadow.reset(state),
        "refresh": lambda: shadow.refresh(range(LAYOUT.num_layers)),
    }[what]
    with ThreadsOfCopies() as threads:
        act()
    assert threads.seen == {1}
    assert torch.get_num_threads() == 3


def shadow_of(state):
    return Shadow(state, alpha=4.0, dtype=torch.float32, device=CPU)
