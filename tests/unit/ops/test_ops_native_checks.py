"""What the kernels would not survive is refused before they are called."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from collm.ops.native import attention, elementwise, linears, logits, training_linear
from factories.kernels import needs_kernels

pytestmark = needs_kernels


def bf16(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bfloat16)


def weight() -> linears.Packed:
    return linears.pack_bfloat16(bf16(64, 96))


def adapted_linear(slots: Tensor, a: Tensor, b: Tensor, ranks: Tensor | None = None) -> Tensor:
    ranks = RANKS if ranks is None else ranks
    return linears.linear(bf16(4, 96), weight(), None, slots, a, b, ranks, (32, 32))


RANKS = torch.full((2,), 8, dtype=torch.int32)
SLOTS, A, B = torch.zeros(4, dtype=torch.int32), bf16(2, 16, 96), bf16(2, 2, 8, 32)
CACHE, KV, CACHE_ROWS = bf16(2, 16, 2, 1, 32), bf16(4, 2, 1, 32), torch.arange(4)
BLOCKS, LENGTHS = torch.zeros(4, 1, dtype=torch.int64), torch.ones(4, dtype=torch.int64)


@pytest.mark.parametrize(
    "call",
    [
        lambda: linears.linear(torch.ones(4, 96), weight(), None),
        lambda: linears.linear(bf16(4, 64), weight(), None),
        lambda: linears.linear(bf16(4, 96), weight(), torch.ones(64)),
        lambda: linears.input_grad(bf16(4, 96), weight()),
        lambda: adapted_linear(SLOTS.long(), A, B),
        lambda: adapted_linear(SLOTS[:3], A, B),
        lambda: adapted_linear(SLOTS, A, B[:1]),
        lambda: adapted_linear(SLOTS, A.transpose(1, 2), B),
        lambda: adapted_linear(SLOTS, A, B, RANKS[:1]),
        lambda: adapted_linear(SLOTS, A, B, RANKS.long()),
        lambda: training_linear.adapted(bf16(4, 96), weight(), None, A[0], B[0], (32, 32)),
        lambda: training_linear.adapted(bf16(4, 96), weight(), None, A[0], bf16(16, 64), (32,)),
        lambda: elementwise.rms_norm(bf16(4, 96), torch.ones(96), 1e-5),
        lambda: elementwise.rotate(bf16(4, 1, 32), bf16(3, 1, 32), bf16(4, 1, 32)),
        lambda: elementwise.rotate(bf16(4, 1, 20), bf16(4, 1, 20), bf16(4, 1, 20)),
        lambda: elementwise.silu_mul(torch.ones(4, 64)),
        lambda: attention.write_kv_(CACHE.transpose(0, 1), KV, CACHE_ROWS),
        lambda: attention.write_kv_(CACHE, KV, CACHE_ROWS.int()),
        lambda: attention.decode_attention(bf16(4, 2, 32), CACHE, BLOCKS.int(), LENGTHS, None),
        lambda: attention.decode_attention(bf16(3, 2, 32), CACHE, BLOCKS, LENGTHS, None),
        lambda: attention.prefill_attention(bf16(4, 2, 64), CACHE, BLOCKS[0], 0, None),
    ],
)
def test_tensors_that_do_not_fit_are_an_error(call: Callable[[], object]):
    with pytest.raises(ValueError, match="^(the kernels take|parts of)"):
        call()


def test_the_same_calls_with_tensors_that_fit_compute():
    assert adapted_linear(SLOTS, A, B).shape == (4, 64)
    attention.write_kv_(CACHE, KV, CACHE_ROWS)
    out = attention.decode_attention(bf16(4, 2, 32), CACHE, BLOCKS, LENGTHS, None)
    assert torch.equal(out, bf16(4, 2, 32))


@pytest.mark.parametrize("target", [-100, 64])
def test_a_target_outside_the_vocabulary_is_an_error(target):
    with pytest.raises(IndexError, match="targets must be from 0 to 63"):
        logits.cross_entropy(bf16(2, 64), torch.tensor([1, target]), wants_gradient=True)
