"""Where collm keeps what it can fetch or make again."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return ``$COLLM_HOME``, or ``collm`` in the user's cache folder."""
    if home := os.environ.get("COLLM_HOME"):
        return Path(home).expanduser()
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_cache) / "collm"
