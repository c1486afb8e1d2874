"""Paged attention by the kernels against plain attention in double precision."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from collm.ops.attention import AttentionPlan, can_attend_natively, paged_attention, write_kv_
from collm.ops.native.attention import prefill_attention
from factories.kernels import PATHS, computing_on, needs_kernels

pytestmark = needs_kernels

NUM_KV_HEADS = 2
ROUNDED = {"atol": 2e-2, "rtol": 1e-2, "check_dtype": False}
"""Weights and results are rounded to bfloat16's 8 bits."""


@pytest.fixture(params=PATHS, autouse=True)
def path(request):
    """Compute each test on every path that this CPU has."""
    with computing_on(request.param) as chosen:
        yield chosen


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def shuffled(size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(1))


def written(kv: Tensor, fill: float = 0.0) -> Tensor:
    """A cache that holds ``kv`` [num_blocks, block_size, 2, num_kv_heads, head_dim], written in any
    order over what ``fill`` left."""
    cache = torch.zeros_like(kv)
    assert can_attend_natively(cache)
    rows, order = kv.flatten(0, 1), shuffled(kv.shape[0] * kv.shape[1])
    write_kv_(cache, torch.full_like(rows, fill), order)
    write_kv_(cache, rows[order], order)
    return cache


def decoding(blocks: Tensor, lengths: list[int], window: int | None) -> AttentionPlan:
    return AttentionPlan(
        cache_rows=torch.empty(0, dtype=torch.long),
        num_decode=len(lengths),
        decode_blocks=blocks,
        decode_lengths=torch.tensor(lengths),
        decode_mask=None,
        window=window,
        spans=(),
    )


def plain(q: Tensor, kv: Tensor, window: int | None) -> Tensor:
    """Attention of one query row [num_heads, head_dim] to keys and values that all may see."""
    kv = (kv[-window:] if window else kv).double().repeat_interleave(len(q) // NUM_KV_HEADS, 2)
    scores = torch.einsum("hd,khd->hk", q.double(), kv[:, 0]) / q.shape[1] ** 0.5
    return torch.einsum("hk,khd->hd", scores.softmax(1), kv[:, 1])


@pytest.mark.parametrize("window", [None, 5, 20])
@pytest.mark.parametrize("lengths", [[1], [33, 2, 16, 17], [40] * 9, [100, 64]])
@pytest.mark.parametrize(
    ("group", "head_dim", "block_size"), [(3, 64, 16), (1, 32, 32), (4, 128, 16), (9, 96, 48)]
)
def test_decode_equals_plain_attention(lengths, window, group, head_dim, block_size):
    num_rows, max_blocks = len(lengths), -(-max(lengths) // block_size)
    kv = randn(64, block_size, 2, NUM_KV_HEADS, head_dim)
    blocks = shuffled(64)[: num_rows * max_blocks].view(num_rows, max_blocks)
    # Queries lie before keys and values in one buffer, as the fused projection leaves them.
    q = randn(num_rows, NUM_KV_HEADS * (group + 2), head_dim, seed=2)[:, : NUM_KV_HEADS * group]
    plan = decoding(blocks, lengths, window)
    out = paged_attention(q, torch.empty(0), written(kv), plan).view(num_rows, -1, head_dim)
    for row, length in enumerate(lengths):
        expected = plain(q[row], kv[blocks[row]].flatten(0, 1)[:length], window)
        assert_close(out[row], expected, **ROUNDED)


@pytest.mark.parametrize("window", [None, 5, 40])
@pytest.mark.parametrize(
    ("num_rows", "num_context", "group", "head_dim", "block_size"),
    [(2, 0, 3, 64, 16), (7, 33, 1, 32, 16), (70, 0, 3, 64, 16), (33, 61, 4, 128, 32)],
)
def test_prefill_equals_plain_attention(num_rows, num_context, group, head_dim, block_size, window):
    length = num_context + num_rows
    kv = randn(16, block_size, 2, NUM_KV_HEADS, head_dim)
    blocks = shuffled(16)[: -(-length // block_size)]
    q = randn(num_rows + 1, NUM_KV_HEADS * (group + 2), head_dim, seed=2)
    q = q[1:, : NUM_KV_HEADS * group]
    out = prefill_attention(q, written(kv), blocks, num_context, window)
    for row in range(num_rows):
        seen = kv[blocks].flatten(0, 1)[: num_context + row + 1]
        assert_close(out[row], plain(q[row], seen, window), **ROUNDED)


@pytest.mark.parametrize("stale", [1e4, torch.nan, -torch.inf])
def test_what_earlier_owners_left_in_a_block_reaches_nobody(stale):
    kv, lengths = randn(4, 16, 2, NUM_KV_HEADS, 64), [1, 7, 16, 27]
    cache = written(torch.full_like(kv, stale))
    blocks = torch.tensor([[0, 0], [1, 0], [2, 0], [2, 3]])
    slots = torch.cat([torch.tensor([0]), torch.arange(16, 23), torch.arange(32, 59)])
    write_kv_(cache, kv.flatten(0, 1)[slots], slots)
    q = randn(4, NUM_KV_HEADS * 3, 64, seed=1)
    out = paged_attention(q, torch.empty(0), cache, decoding(blocks, lengths, None))
    for row, length in enumerate(lengths):
        expected = plain(q[row], kv[blocks[row]].flatten(0, 1)[:length], None)
        assert_close(out[row].view(-1, 64), expected, **ROUNDED)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("part", [0, 1])
def test_nothing_but_finite_values_is_written(value, part):
    kv = randn(2, 16, 2, NUM_KV_HEADS, 64)
    cleared = kv.clone()
    kv[1, 3, part, 1, 17], cleared[1, 3, part, 1, 17] = value, 0.0
    cache = written(kv)
    assert torch.isfinite(cache).all()
    assert torch.equal(cache, written(cleared))


def test_a_write_changes_no_other_slot():
    kv, other = randn(2, 16, 2, NUM_KV_HEADS, 64), randn(1, 2, NUM_KV_HEADS, 64, seed=1)
    expected = kv.clone()
    expected[1, 5] = other
    cache = written(kv)
    write_kv_(cache, other, torch.tensor([21]))
    assert torch.equal(cache, written(expected, fill=3.0))


@pytest.mark.parametrize("block_size", [4, 8, 24])
def test_blocks_of_other_sizes_are_left_to_torch(block_size):
    kv = randn(2, block_size, 2, NUM_KV_HEADS, 64)
    cache = torch.zeros_like(kv)
    assert not can_attend_natively(cache)
    write_kv_(cache, kv.flatten(0, 1), torch.arange(2 * block_size))
    assert torch.equal(cache, kv)
