"""Rotation against complex numbers, which is what it is."""

import torch
from torch.testing import assert_close

from collm.ops.rotary import RotaryTable, rotate


def test_rotation_is_a_complex_product():
    head_dim, scaling = 8, 1.25
    inv_freq = 1.0 / 100.0 ** (torch.arange(4) / 4)
    table = RotaryTable(inv_freq, scaling, 50, torch.float32)
    positions = torch.tensor([0, 7, 49, 3])
    x = torch.randn(4, 3, head_dim, generator=torch.Generator().manual_seed(0))
    # Dimension i and i + head_dim / 2 are the real and imaginary part of one number.
    numbers = torch.complex(x[..., :4].double(), x[..., 4:].double())
    turns = torch.polar(
        torch.full((4, 1, 4), scaling, dtype=torch.float64),
        (positions[:, None, None] * inv_freq.double()),
    )
    expected = numbers * turns
    assert_close(
        rotate(x, *table.rows(positions)),
        torch.cat((expected.real, expected.imag), dim=-1).float(),
        atol=1e-5,
        rtol=1e-5,
    )


def test_products_depend_on_the_distance_alone():
    table = RotaryTable(torch.tensor([1.0, 0.3]), 1.0, 100, torch.float32)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, 4, generator=generator).expand(2, 1, 4) for _ in range(2))
    far = rotate(q, *table.rows(torch.tensor([12, 62]))) * rotate(
        k, *table.rows(torch.tensor([5, 55]))
    )
    near, distant = far.sum(dim=-1).flatten().tolist()
    assert abs(near - distant) < 1e-5
