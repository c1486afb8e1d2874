"""Layout, state and device slots: what lies where."""

import pytest
import torch
from torch.testing import assert_close

from collm.errors import AdapterError, ConfigError
from collm.lora.bank import AdapterBank
from collm.lora.config import LoraConfig
from collm.lora.layout import lora_layout
from collm.lora.state import AdapterState, initial_state
from collm.model.spec import ModelSpec
from factories.checkpoints import tiny_config
from factories.engines import random_adapter

SPEC = ModelSpec.from_config(tiny_config("qwen3").to_dict())
CPU = torch.device("cpu")


def test_views_cover_the_flat_vector_exactly_once():
    layout = lora_layout(SPEC, 3)
    flat = torch.zeros(layout.num_parameters)
    for factors in layout.views(flat):
        factors.a.add_(1.0)
        for _, _, b in factors.parts():
            b.add_(1.0)
    assert torch.equal(flat, torch.ones_like(flat))


def test_parts_have_the_shapes_of_the_linears_they_adapt():
    layout = lora_layout(SPEC, 3)
    shapes = {
        part.module: (tuple(a.shape), tuple(b.shape))
        for factors in layout.views(torch.zeros(layout.num_parameters))
        for part, a, b in factors.parts()
    }
    assert shapes == {
        "self_attn.q_proj": ((3, 64), (128, 3)),
        "self_attn.k_proj": ((3, 64), (64, 3)),
        "self_attn.v_proj": ((3, 64), (64, 3)),
        "self_attn.o_proj": ((3, 128), (64, 3)),
        "mlp.gate_proj": ((3, 64), (128, 3)),
        "mlp.up_proj": ((3, 64), (128, 3)),
        "mlp.down_proj": ((3, 128), (64, 3)),
    }


@pytest.mark.parametrize("rank", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_slot_applies_every_part_at_its_own_rank(rank, dtype):
    bank = AdapterBank(lora_layout(SPEC, 8), 2, dtype, CPU)
    bank.load(1, random_adapter(SPEC, rank=8, seed=7))  # what is there before must not matter
    state = random_adapter(SPEC, rank=rank, seed=1)
    bank.load(1, state)
    generator = torch.Generator().manual_seed(0)
    for factors in state.layout.views(state.flat):
        x = torch.randn(5, factors.target.in_features, generator=generator)
        slots = bank.factors(factors.layer, factors.target.name)
        a, b = (tensor.float() for tensor in slots.dense(1))
        expected = torch.cat(
            [x @ pa.to(dtype).float().T @ pb.to(dtype).float().T for _, pa, pb in factors.parts()],
            dim=1,
        )
        assert_close(x @ a.T @ b, expected, atol=1e-5, rtol=1e-5)
        assert not slots.a[0].any(), "the other slot is untouched"
        assert not slots.b[0].any()


def test_bank_counts_its_bytes():
    bank = AdapterBank(lora_layout(SPEC, 2), 3, torch.bfloat16, CPU)
    slots = [
        bank.factors(n, name)
        for n in range(SPEC.num_layers) for name in ("qkv", "o", "gate_up", "down")
    ]  # fmt: skip
    assert bank.num_bytes == sum((one.a.numel() + one.b.numel()) * 2 for one in slots)


def test_a_new_adapter_changes_nothing_and_repeats_by_seed():
    layout = lora_layout(SPEC, 4)
    state = initial_state(layout, 5)
    assert torch.equal(state.flat, initial_state(layout, 5).flat)
    assert not torch.equal(state.flat, initial_state(layout, 6).flat)
    for factors in layout.views(state.flat):
        assert not factors.b.any()
        # Kaiming uniform with a = sqrt(5), as peft and torch.nn.Linear start: 1 / sqrt(in).
        bound = factors.target.in_features**-0.5
        assert 0.9 * bound < float(factors.a.abs().max()) <= bound


def test_digest_tells_ranks_and_values_apart():
    state = random_adapter(SPEC, rank=4)
    changed = AdapterState(state.layout, state.flat.clone())
    changed.flat[-1] += 1e-3
    zeros = [AdapterState(lora_layout(SPEC, r), torch.zeros(lora_layout(SPEC, r).num_parameters))
             for r in (1, 2)]  # fmt: skip
    digests = {s.digest() for s in (state, changed, *zeros)}
    assert len(digests) == 4
    assert state.digest() == AdapterState(state.layout, state.flat.clone()).digest()


def test_non_finite_values_are_found_and_large_ones_are_not_mistaken_for_them():
    state = random_adapter(SPEC, rank=4)
    large = AdapterState(state.layout, torch.full_like(state.flat, 1e38))
    large.check_finite()
    flat = state.flat.clone()
    flat[-1] = torch.nan
    with pytest.raises(AdapterError, match=r"layers\.1\.mlp\.down_proj"):
        AdapterState(state.layout, flat).check_finite()


@pytest.mark.parametrize(
    ("field", "value"), [("max_rank", 0), ("max_rank", 513), ("num_slots", 1), ("num_slots", 1025)]
)
def test_configuration_out_of_range_names_the_field(field, value):
    with pytest.raises(ConfigError, match=f"lora.{field} is {value}"):
        LoraConfig(**{field: value})
