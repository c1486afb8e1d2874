"""What the machine itself can do: the bounds that a step's time is held against.

Each limit is the best that any code here reaches, over several tries: neither depends on the model.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from collm.ops.large_pages import LargePages
from collm.ops.linear import freeze_linear

_STREAM_BYTES = 512 << 20
"""Read by one call: far more than any cache holds."""
_TRIES = 7


@dataclass(frozen=True, slots=True)
class Limits:
    """Of this machine, with the threads that torch has."""

    read_bytes_per_s: float
    """Memory that is read once, in order."""
    bfloat16_per_s: float
    """Operations of matrix products, a multiplication and an addition each one."""

    def __str__(self) -> str:
        return (
            f"{self.read_bytes_per_s / 1e9:.1f} GB/s read, "
            f"{self.bfloat16_per_s / 1e9:.0f} GFLOP/s bfloat16 products"
        )

    def seconds(self, num_bytes: float, num_operations: float) -> float:
        """Return the least time for reading so much and computing so much, side by side."""
        return max(num_bytes / self.read_bytes_per_s, num_operations / self.bfloat16_per_s)


def measure_limits() -> Limits:
    """Take the best of torch's own operations and of this project's kernels."""
    return Limits(_STREAM_BYTES / _read_s(), max(map(_products_per_s, (512, 1024, 2048))))


def _read_s() -> float:
    numbers = torch.ones(_STREAM_BYTES // 4)
    weight = torch.ones(_STREAM_BYTES // 2 // 1024, 1024, dtype=torch.bfloat16)
    linear = freeze_linear(weight, pages=LargePages())
    x = torch.ones(1, 1024, dtype=torch.bfloat16)
    del weight
    return min(_best_s(numbers.sum), _best_s(lambda: linear.forward(x)))


def _products_per_s(size: int) -> float:
    weight = torch.randn(size, size).bfloat16()
    x, linear = torch.randn(size, size).bfloat16(), freeze_linear(weight)
    best_s = min(_best_s(lambda: functional.linear(x, weight)), _best_s(lambda: linear.forward(x)))
    return 2 * size**3 / best_s


@torch.inference_mode()
def _best_s(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(_TRIES):
        started_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - started_s)
    return min(times)
