"""With what codes ``collm`` ends; docs/cli.md lists them, and a test holds the two together."""

from enum import IntEnum

from collm.errors import ConfigError, UnreachableError


class ExitCode(IntEnum):
    """How a command ended."""

    DONE = 0
    """It did what was asked."""
    FAILED = 1
    """It could not be done, or something is wrong; the message says what."""
    WRONG_SETTING = 2
    """A setting, option or argument is wrong; nothing was done."""
    NO_SERVER = 3
    """No server answers at the address; the same command may succeed later."""
    INTERRUPTED = 130
    """Ctrl-C ended it."""


def exit_code_of(error: Exception) -> ExitCode:
    """Return the code that an expected error ends a command with."""
    if isinstance(error, ConfigError):
        return ExitCode.WRONG_SETTING
    return ExitCode.NO_SERVER if isinstance(error, UnreachableError) else ExitCode.FAILED
