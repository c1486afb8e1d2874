"""How much memory this process holds."""

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
