"""Memory in large pages, for what every step reads from end to end.

A step that reads 250 MB in pages of 4 KiB looks up sixty thousand of them, and what a CPU foresees
ends with each. Linux gives pages of 2 MiB to whoever asks; elsewhere this is memory like any other.
"""

import math
import mmap

import torch
from torch import Tensor

_CHUNK_BYTES = 32 << 20
"""Taken from the system at once: what is left of the last one is never touched."""
_ALIGNMENT = 64
"""Bytes of a cache line."""


class LargePages:
    """Places tensors one after another, since most are smaller than a large page.

    Memory goes back to the system when nothing is left in a chunk of it.
    """

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return zeros on the CPU."""
        num_bytes = math.prod(shape) * dtype.itemsize
        size = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        if size > len(self._rest):
            self._rest = _map(max(size, _CHUNK_BYTES))
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken[:num_bytes].view(dtype).view(shape)

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a contiguous copy of a tensor on the CPU."""
        return self.zeros(tuple(tensor.shape), tensor.dtype).copy_(tensor)


def _map(num_bytes: int) -> Tensor:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(num_bytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
