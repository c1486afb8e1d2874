"""Paged attention against plain attention over each sequence's own keys and values."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from collm.engine.batch import BatchBuilder, row_order
from collm.engine.plan import ScheduledSequence, scheduled
from collm.engine.sequence import Sequence
from collm.ops.attention import AttentionPlan, paged_attention, write_kv_
from collm.types import BASE, BASE_SLOT, Binding
from factories.engine import request

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 4, 2, 8, 4
CHUNKS = [(0, 1), (6, 1), (3, 1), (0, 5), (7, 6), (4, 12)]
"""(context, new tokens) of sequences that share a step."""


def reference(q: Tensor, kv: Tensor, window: int | None) -> Tensor:
    """Attention of the last rows of one sequence over all of it, in float64, head by head."""
    q, kv = q.double(), kv.double()
    num_new, num_keys = q.shape[0], kv.shape[0]
    out = torch.empty(num_new, NUM_HEADS, HEAD_DIM, dtype=torch.float64)
    for row in range(num_new):
        position = num_keys - num_new + row
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(NUM_HEADS):
            keys, values = kv[first : position + 1, :, head // (NUM_HEADS // NUM_KV_HEADS)].unbind(
                1
            )
            weights = (keys @ q[row, head] / HEAD_DIM**0.5).softmax(dim=0)
            out[row, head] = weights @ values
    return out.flatten(1)


def planned_step(window: int | None) -> tuple[list[ScheduledSequence], AttentionPlan, int]:
    items, next_block = [], 1  # block 0, which pads tables, belongs to nobody
    for index, (context, new) in enumerate(CHUNKS):
        sequence = Sequence(request(str(index), [1] * (context + new)), 0)
        num_blocks = -(-(context + new) // BLOCK_SIZE)
        sequence.block_table = list(range(next_block, next_block + num_blocks))[::-1]
        next_block += num_blocks
        sequence.binding = Binding(BASE, BASE_SLOT)
        sequence.num_computed_tokens = context
        items.append(scheduled(sequence, new))
    items.sort(key=row_order)
    cache = torch.empty(1, BLOCK_SIZE, 2, NUM_KV_HEADS, HEAD_DIM)
    batch = BatchBuilder(cache, [window]).build(items)
    return items, batch.attention[window], next_block


@pytest.mark.parametrize("window", [None, 1, 6, 100])
@pytest.mark.parametrize("stale", [1e4, torch.nan])
def test_mixed_step_equals_plain_attention(window, stale):
    """Whatever earlier owners left in blocks (a write makes it finite) reaches nobody."""
    items, plan, num_blocks = planned_step(window)
    generator = torch.Generator().manual_seed(0)
    cache = torch.zeros(num_blocks, BLOCK_SIZE, 2, NUM_KV_HEADS, HEAD_DIM)
    everywhere = torch.arange(num_blocks * BLOCK_SIZE)
    write_kv_(cache, torch.full((len(everywhere), *cache.shape[2:]), stale), everywhere)
    queries, new_kvs, all_kvs = [], [], []
    for item in items:
        length = item.first_position + item.num_new_tokens
        kv = torch.randn(length, 2, NUM_KV_HEADS, HEAD_DIM, generator=generator)
        table = item.sequence.block_table
        rows = [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(length)]
        write_kv_(
            cache,
            kv[: item.first_position],
            torch.tensor(rows[: item.first_position], dtype=torch.long),
        )
        queries.append(torch.randn(item.num_new_tokens, NUM_HEADS, HEAD_DIM, generator=generator))
        new_kvs.append(kv[item.first_position :])
        all_kvs.append(kv)
    write_kv_(cache, torch.cat(new_kvs), plan.cache_rows)
    out = paged_attention(torch.cat(queries), torch.cat(new_kvs), cache, plan)
    expected = torch.cat([reference(q, kv, window) for q, kv in zip(queries, all_kvs, strict=True)])
    assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_nothing_but_finite_values_enters_the_cache(value):
    cache = torch.ones(2, BLOCK_SIZE, 2, NUM_KV_HEADS, HEAD_DIM)
    kv = torch.full((1, 2, NUM_KV_HEADS, HEAD_DIM), value)
    write_kv_(cache, kv, torch.tensor([5]))
    assert torch.isfinite(cache).all()
    assert not cache[1, 1].any()
    assert torch.equal(cache[0], torch.ones_like(cache[0]))
