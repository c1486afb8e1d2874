"""Unmerged LoRA over segments against the token-by-token reference."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from collm.ops.lora import add_lora_, add_lora_reference


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    runs=st.lists(st.tuples(st.integers(-1, 2), st.integers(1, 5)), min_size=1, max_size=6),
    seed=st.integers(0, 100),
)
def test_segments_equal_the_reference(runs, seed):
    generator = torch.Generator().manual_seed(seed)
    slots = [slot for slot, length in runs for _ in range(length)]
    segments, row = [], 0
    for slot, length in runs:
        if slot >= 0:
            segments.append((row, row + length, slot))
        row += length
    x = torch.randn(row, 6, generator=generator)
    y = torch.randn(row, 9, generator=generator)
    bank_a = torch.randn(3, 2, 6, generator=generator)
    bank_b = torch.randn(3, 2, 9, generator=generator)
    expected = add_lora_reference(y, x, torch.tensor(slots), bank_a, bank_b)
    base = y.clone()
    add_lora_(y, x, segments, dict(enumerate(zip(bank_a, bank_b, strict=True))))
    assert_close(y, expected, atol=1e-5, rtol=1e-5)
    base_rows = torch.tensor(slots) < 0
    assert torch.equal(y[base_rows], base[base_rows]), "base-only rows stay bit for bit"
