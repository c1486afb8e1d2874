"""How long a benchmark's child processes live: no longer than the benchmark itself."""

import multiprocessing
import os
import threading
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """From now on, end this process at once when the one that started it has died.

    For children of ``multiprocessing``, which have no standard input that would tell them.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a child has a parent"

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
