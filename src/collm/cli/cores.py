"""How many cores there are to compute on."""

import os


def num_cores() -> int:
    """Return how many cores this process may use; all there are where that is not known."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
