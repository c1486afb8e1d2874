"""The admin key, which servers ask for and commands that change them send."""

import os

from collm.errors import ConfigError

_VARIABLE = "COLLM_ADMIN_KEY"


def admin_key() -> str | None:
    """Return the key in ``COLLM_ADMIN_KEY``; ``None`` when it is not set.

    Raises:
        ConfigError: It cannot be sent as a header.
    """
    key = os.environ.get(_VARIABLE)
    if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key != ""):
        raise ConfigError(f"{_VARIABLE} must be printable ASCII without spaces around it")
    return key
