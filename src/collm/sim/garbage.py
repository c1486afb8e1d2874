"""Runs without Python's collector of reference cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collector() -> Iterator[None]:
    """Keep the collector off, and leave it as it was.

    What a simulation lets go of refers to nothing that refers back, so that counting references
    frees it. The collector would find nothing, but look at all that hundreds of replicas hold, time
    and again: up to a third of a run's time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
