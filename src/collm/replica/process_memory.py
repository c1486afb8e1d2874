"""How much memory this process holds, and how much there is."""

import os
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """Return the bytes of this process that are in memory; ``None`` where the system hides it."""
    try:
        num_pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return num_pages * os.sysconf("SC_PAGE_SIZE")


def machine_bytes() -> int | None:
    """Return the bytes of memory that the machine has; ``None`` where the system hides it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
