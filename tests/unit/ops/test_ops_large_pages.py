"""Tensors one after another in memory that is taken in large pieces."""

import torch

from collm.ops.large_pages import LargePages


def test_tensors_are_zero_and_do_not_share_memory():
    pages = LargePages()
    shapes = [(3, 5), (0,), (1,), (7, 11, 2)]
    tensors = [pages.zeros(shape, torch.bfloat16) for shape in shapes]
    for number, tensor in enumerate(tensors, 1):
        assert not tensor.any()
        tensor.fill_(number)
    assert [tuple(tensor.shape) for tensor in tensors] == shapes
    for number, tensor in enumerate(tensors, 1):
        assert (tensor == number).all()
        assert tensor.data_ptr() % 64 == 0


def test_a_tensor_larger_than_a_piece_has_room():
    pages = LargePages()
    before, large = pages.zeros((8,), torch.int32), pages.zeros((5, 2**22), torch.int32)
    after = pages.zeros((8,), torch.int32)
    large.fill_(1)
    assert not before.any()
    assert not after.any()


def test_a_copy_is_contiguous_and_equal():
    tensor = torch.arange(12.0).view(3, 4).T
    copy = LargePages().copy(tensor)
    assert copy.is_contiguous()
    assert torch.equal(copy, tensor)


def test_tensors_outlive_what_placed_them():
    tensor = LargePages().copy(torch.arange(5))
    others = [LargePages().zeros((1 << 20,), torch.int64) for _ in range(3)]
    assert torch.equal(tensor, torch.arange(5)), len(others)
