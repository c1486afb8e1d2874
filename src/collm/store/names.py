"""Names that become names of folders, and ids made up here."""

import re
import secrets

from collm.errors import AdapterError

_ALLOWED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(what: str, name: str) -> None:
    """Raise ``AdapterError``, calling it ``what``, unless ``name`` is safe as a folder's name."""
    if not _ALLOWED.fullmatch(name):
        raise AdapterError(
            f"{what} {name!r} is not allowed: it must be 1 to 64 letters, digits, '.', '_' or '-', "
            "the first a letter or digit"
        )


def new_id(prefix: str, owner: str | None = None) -> str:
    """Return ``PREFIX-`` and 24 random hexadecimal digits, the owner's name between them."""
    digits = secrets.token_hex(12)
    return f"{prefix}-{digits}" if owner is None else f"{prefix}-{owner}-{digits}"
