"""Which threads of a replica compute in parallel: the step loop's alone.

OpenMP keeps a team of workers for each thread that ever computed in parallel, until that thread
ends. With more of them than cores libgomp lets none wait awake for its next product, and every
product of the step loop then has to wake a sleeper: docs/decisions/passive-waiting.md has figures.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def on_passing_thread(work: Callable[[], Result]) -> Result:
    """Return what ``work`` returns, computed on a thread that then ends, workers and all."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="passing") as executor:
        return executor.submit(work).result()


def alone(work: Callable[..., Result], *args: Any) -> Result:
    """Return ``work(*args)``; from now on the calling thread computes without workers.

    For threads that live on beside the step loop's.
    """
    torch.set_num_threads(1)
    return work(*args)
