"""The kernels' attention of training against the plain one in double precision."""

import pytest
import torch
from torch.testing import assert_close

from collm.ops.native import library
from collm.training.attention import pack_attention
from collm.training.native_attention import span_attention
from factories.kernels import PATHS, computing_on, needs_kernels

pytestmark = needs_kernels
ROUNDED = {"atol": 3e-2, "rtol": 3e-2, "check_dtype": False}
"""Results, and the weights and gradients of scores on the way, are rounded to bfloat16's 8 bits."""


@pytest.fixture(params=PATHS, autouse=True)
def path(request):
    """Compute each test on every path that this CPU has."""
    with computing_on(request.param) as chosen:
        yield chosen


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("window", [None, 1, 9, 40])
@pytest.mark.parametrize(
    ("num_prefix", "lengths", "without_prefix"),
    [
        (0, [1], set()),
        (0, [70, 2, 33], set()),
        (12, [1, 40, 9], set()),
        (37, [50, 5, 31, 8], {1, 2}),
        (9, [4], {0}),
    ],
)
@pytest.mark.parametrize(("group", "head_dim"), [(3, 64), (1, 32), (4, 128)])
def test_outputs_and_gradients_equal_the_plain_ones(
    num_prefix, lengths, without_prefix, window, group, head_dim
):
    num_kv_heads, num_padding = 2, 3
    num_heads, num_rows = num_kv_heads * group, num_prefix + sum(lengths) + num_padding
    # Queries lie between others in one buffer, as the fused projection leaves them.
    wide = randn(num_rows, num_heads + 2, head_dim, seed=0)
    q = wide[:, :num_heads].detach().requires_grad_()
    kv = randn(num_rows, 2, num_kv_heads, head_dim, seed=1).requires_grad_()
    weight = randn(num_rows, num_heads * head_dim, seed=2)
    spans = span_attention(num_prefix, lengths, window, without_prefix=without_prefix)
    out = spans.attend(q, kv)
    grads = torch.autograd.grad(out, (q, kv), weight)

    plain = pack_attention(
        num_prefix,
        lengths,
        num_rows,
        window,
        torch.float64,
        q.device,
        without_prefix=without_prefix,
    )
    q64, kv64 = (t.detach().double().requires_grad_() for t in (q, kv))
    expected = plain.attend(q64, kv64)
    assert_close(out, expected, **ROUNDED)
    assert_close(grads, torch.autograd.grad(expected, (q64, kv64), weight.double()), **ROUNDED)


@pytest.mark.parametrize("window", [None, 7])
def test_pieces_that_attend_to_earlier_rows_as_to_a_prefix_equal_the_whole_sample(window):
    num_rows, num_heads, head_dim = 40, 4, 32
    q, kv = (
        randn(num_rows, *shape, head_dim, seed=seed).requires_grad_()
        for seed, shape in enumerate([(num_heads,), (2, 2)])
    )
    weight = randn(num_rows, num_heads * head_dim, seed=2)
    whole = span_attention(0, [num_rows], window, without_prefix=frozenset()).attend(q, kv)
    parts = []
    for first, last in ((0, 15), (15, 28), (28, 40)):
        piece = span_attention(first, [last - first], window, without_prefix=frozenset())
        queries = torch.cat((q.new_zeros(first, num_heads, head_dim), q[first:last]))
        parts.append(piece.attend(queries, kv[:last])[first:])
    assert torch.equal(torch.cat(parts), whole)
    grads = torch.autograd.grad(torch.cat(parts), (q, kv), weight)
    assert_close(grads, torch.autograd.grad(whole, (q, kv), weight), **ROUNDED)


def test_other_dtypes_and_head_sizes_keep_to_torch():
    assert library.can_attend(torch.bfloat16, 64)
    assert not library.can_attend(torch.float32, 64)
    assert not library.can_attend(torch.bfloat16, 80)
