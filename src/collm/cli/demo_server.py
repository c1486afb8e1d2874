"""The demo's server: a ``collm serve`` process of its own, with its log in a file."""

import asyncio
import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from collm.errors import CollmError

_READY = re.compile(rb"collm is ready at (\S+)")
_POLL_S = 0.2
_STOP_TIMEOUT_S = 20.0
_NUM_LAST_LINES = 12


class ServerEndedError(CollmError):
    """The server ended by itself; says how, with the last lines of its log."""


class ServerProcess:
    """A server process and the file that its output goes to."""

    def __init__(self, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self._process = process
        self._log_path = log_path

    @classmethod
    async def start(cls, command: Sequence[str], log_path: Path) -> "ServerProcess":
        """Start ``command`` in a session of its own, so that Ctrl-C reaches only its parent."""
        with log_path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process, log_path)

    async def ready(self) -> str:
        """Wait until the server says that it is ready; return its URL.

        Raises:
            ServerEndedError: It ended before.
        """
        while True:
            has_ended = self._process.returncode is not None
            found = _READY.search(self._log_path.read_bytes())
            if found:
                return found[1].decode()
            if has_ended:
                raise self._ended()
            await asyncio.sleep(_POLL_S)

    async def end(self) -> ServerEndedError:
        """Wait until the server ends by itself; return how it did."""
        await self._process.wait()
        return self._ended()

    async def stop(self) -> None:
        """Ask the server to end and wait; kill it when it takes too long."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_TIMEOUT_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def last_lines(self, number: int = _NUM_LAST_LINES) -> list[str]:
        """Return the last lines of the log that are not empty."""
        text = self._log_path.read_text(encoding="utf-8", errors="replace")
        return [line for line in text.splitlines() if line.strip()][-number:]

    def _ended(self) -> ServerEndedError:
        lines = "\n".join(f"  {line}" for line in self.last_lines())
        code = self._process.returncode
        return ServerEndedError(
            f"the server ended with exit code {code}; {self._log_path}:\n{lines}"
        )
