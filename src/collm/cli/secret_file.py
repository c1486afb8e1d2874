"""The secret that a cluster's processes share."""

from pathlib import Path

from collm.errors import ConfigError


def read_secret(path: Path) -> str:
    """Return the secret in a file.

    Raises:
        ConfigError: The file cannot be read, or is empty.
    """
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the control secret {path}: {error}") from error
    if not secret:
        raise ConfigError(f"the control secret {path} is empty")
    return secret
