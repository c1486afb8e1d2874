"""The paths of compiled kernels that this CPU has, for tests to run on each."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from collm.ops.lora import SlotFactors, reserve_factors
from collm.ops.native import library

PATHS = [path for path in library.paths() if path != "torch"]
needs_kernels = pytest.mark.skipif(not PATHS, reason="no kernels are built, or this CPU runs none")


@contextmanager
def computing_on(path: library.KernelPath) -> Iterator[library.KernelPath]:
    """Compute on a path; on the usual one again afterwards."""
    usual = library.path()
    library.choose(path)
    try:
        yield path
    finally:
        library.choose(usual)


@contextmanager
def computing_with(num_threads: int) -> Iterator[None]:
    """Compute with so many threads, whatever the cores; as before afterwards."""
    usual = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def slot_factors(bank_a: Tensor, bank_b: Tensor) -> SlotFactors:
    """Factors A [num_slots, rank, in_features] and Bᵀ [num_slots, rank, out_features] in slots."""
    num_slots, rank, in_features = bank_a.shape
    sizes = (bank_b.shape[2],)
    factors = reserve_factors(num_slots, rank, in_features, sizes, bank_a.new_zeros)
    for slot in range(num_slots):
        factors.load(slot, bank_a[slot].unsqueeze(0), bank_b[slot])
    return factors
