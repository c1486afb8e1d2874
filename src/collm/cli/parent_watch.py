"""How a child process learns that its parent is gone: its standard input ends."""

import os
import signal
import threading
import time

from collm.errors import ConfigError

_STDIN = 0
_READ_BYTES = 1024


def end_with_stdin(grace_s: float) -> None:
    """From now on, end this process in good order once its standard input ends.

    Args:
        grace_s: After this time the process ends whatever it is doing.

    Raises:
        ConfigError: There is no standard input.
    """
    try:
        os.fstat(_STDIN)
    except OSError as error:
        raise ConfigError("--end-with-stdin: this process has no standard input") from error
    threading.Thread(target=_watch, args=(grace_s,), name="parent watch", daemon=True).start()


def _watch(grace_s: float) -> None:
    while os.read(_STDIN, _READ_BYTES):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    os._exit(1)
