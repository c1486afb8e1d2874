"""The paths of compiled kernels that this CPU has, for tests to run on each."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

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
