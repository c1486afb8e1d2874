"""How many threads a piece of work is worth."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on the calling thread alone.

    For work so small that waking a sleeping worker takes longer, and for many copies in a row: each
    time the worker may have to wait for a core, while other threads compute. Changing the number of
    threads costs a tenth of a microsecond, and concerns the calling thread only.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
