"""Waiting for what another thread or process does."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WAIT_S = 120.0
"""Longer than anything takes, on a machine however busy: what takes longer hangs."""


def wait_until(is_so: Callable[[], T], *, pause_s: float = 0.02, within_s: float = WAIT_S) -> T:
    """Look again and again until ``is_so()`` is truthy, and return that.

    Wait for all that is asserted next: of two things that happen one after the other, the second
    may come a good while after the first.
    """
    deadline_s, pause = time.monotonic() + within_s, threading.Event()
    while not (found := is_so()):
        assert time.monotonic() < deadline_s, "waited in vain"
        pause.wait(pause_s)
    return found
