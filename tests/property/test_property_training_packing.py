"""Packed attention against each sample on its own, for any lengths, prefix and window."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from collm.training.attention import pack_attention

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 6


def alone(q: Tensor, kv: Tensor, window: int | None) -> Tensor:
    """Causal attention over all rows, by loops over heads and a plain softmax."""
    num_rows = q.shape[0]
    distance = torch.arange(num_rows).unsqueeze(1) - torch.arange(num_rows)
    is_hidden = (distance < 0) | (distance >= (window or num_rows))
    outputs = []
    for head in range(NUM_HEADS):
        k, v = kv[:, :, head * NUM_KV_HEADS // NUM_HEADS].unbind(1)
        scores = (q[:, head] @ k.T / HEAD_DIM**0.5).masked_fill(is_hidden, -torch.inf)
        outputs.append(scores.softmax(-1) @ v)
    return torch.cat(outputs, dim=1)


@settings(max_examples=60, deadline=None)
@given(
    num_prefix=st.integers(0, 40),
    lengths=st.lists(st.integers(1, 70) | st.integers(250, 270), min_size=1, max_size=5),
    without_prefix=st.frozensets(st.integers(0, 4)),
    window=st.none() | st.integers(1, 60),
    seed=st.integers(0, 2**16),
)
def test_packed_attention_equals_each_sample_alone(
    num_prefix: int,
    lengths: list[int],
    without_prefix: frozenset[int],
    window: int | None,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_rows = num_prefix + sum(lengths)
    shape_q, shape_kv = (num_rows, NUM_HEADS, HEAD_DIM), (num_rows, 2, NUM_KV_HEADS, HEAD_DIM)
    q = torch.randn(shape_q, generator=generator, dtype=torch.float64).requires_grad_()
    kv = torch.randn(shape_kv, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(num_rows, NUM_HEADS * HEAD_DIM, generator=generator, dtype=torch.float64)

    packed = pack_attention(
        num_prefix, lengths, len(q), window, q.dtype, q.device, without_prefix=without_prefix
    )
    out = packed.attend(q, kv)
    grads = torch.autograd.grad((out * weight).sum(), (q, kv))

    expected = [alone(q[:num_prefix], kv[:num_prefix], window)] if num_prefix else []
    start = num_prefix
    for index, length in enumerate(lengths):
        num_before = 0 if index in without_prefix else num_prefix
        rows = torch.cat((torch.arange(num_before), torch.arange(start, start + length)))
        expected.append(alone(q[rows], kv[rows], window)[num_before:])
        start += length
    reference = torch.cat(expected)
    expected_grads = torch.autograd.grad((reference * weight).sum(), (q, kv))
    # Float64, so only rounding is left.
    assert_close(out, reference, atol=1e-9, rtol=1e-9)
    assert_close(grads, expected_grads, atol=1e-9, rtol=1e-9)
