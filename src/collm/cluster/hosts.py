"""Where a cluster's processes run: the seam, and subprocesses of this machine behind it."""

import asyncio
import contextlib
import logging
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from collm.errors import CollmError

_log = logging.getLogger(__name__)

STARTING = "collm is starting"
"""What a process says while it works on its start, for its parent alone."""

_READY = re.compile(rb"collm is ready at (\S+)")
_UNTOLD = (b"", STARTING.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """What is needed to start one of a cluster's processes."""

    name: str
    command: tuple[str, ...]
    """Program and arguments. It says ``collm is ready at URL`` on its standard output, and before
    that something now and then if its start takes minutes. It ends in good order on SIGTERM and
    when its standard input ends."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Set on top of the parent's own."""
    shared_files: tuple[int, ...] = ()
    """File descriptors of the parent that it gets under the same numbers."""


class Process(Protocol):
    """A started process."""

    @property
    def pid(self) -> int:
        """Its id on its machine."""
        ...

    @property
    def num_lines(self) -> int:
        """Lines that it has said so far."""
        ...

    async def ready(self) -> str | None:
        """Wait until it says that it is ready; return its URL, or ``None`` when it ends before."""
        ...

    async def ended(self) -> int:
        """Wait for its end; return its exit code, negative for the signal that killed it."""
        ...

    def ask_to_end(self) -> None:
        """Ask it to end in good order; a second time, to end now. Nothing when it has ended."""
        ...

    def kill(self) -> None:
        """End it, whatever it does. Nothing when it has ended."""
        ...


class ReplicaHost(Protocol):
    """Starts processes somewhere."""

    async def start(self, spec: ProcessSpec) -> Process:
        """Start a process; raises ``CollmError`` when that cannot be done."""
        ...


class LocalHost:
    """Runs processes beside its own. They end, in good order, when this one dies."""

    async def start(self, spec: ProcessSpec) -> "LocalProcess":
        """Start a process in a session of its own, so that Ctrl-C reaches only its parent.

        Raises:
            CollmError: The program cannot be started.
        """
        # Pipes of our own: asyncio's would make waiting for the process wait for whatever else
        # has inherited their ends.
        its_input, lifeline = os.pipe()
        output, its_output = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=its_input,
                stdout=its_output,
                # Logs go where this process's own do, also when it is gone.
                stderr=None,
                env={**os.environ, **spec.environment},
                pass_fds=spec.shared_files,
                start_new_session=True,
            )
        except OSError as error:
            os.close(lifeline)
            os.close(output)
            raise CollmError(f"{spec.name} cannot be started: {error}") from error
        finally:
            os.close(its_input)
            os.close(its_output)
        return LocalProcess(spec.name, process, lifeline, os.fdopen(output, "rb"))


class LocalProcess:
    """A subprocess, its output, and the pipe whose end tells it that its parent is gone."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, lifeline: int, output: BinaryIO
    ) -> None:
        self.num_lines = 0
        """Lines that it has said so far."""
        self._process = process
        self._url: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.create_task(self._run(name, lifeline, output))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def ready(self) -> str | None:
        """Wait until it says that it is ready; return its URL, or ``None`` when it ends before."""
        return await asyncio.shield(self._url)

    async def ended(self) -> int:
        """Wait for its end; return its exit code, negative for the signal that killed it."""
        return await asyncio.shield(self._ending)

    def ask_to_end(self) -> None:
        """Send it SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _run(self, name: str, lifeline: int, output: BinaryIO) -> int:
        reading = asyncio.create_task(self._read(name, output))
        try:
            return await self._process.wait()
        finally:
            os.close(lifeline)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            if not self._url.done():
                self._url.set_result(None)

    async def _read(self, name: str, output: BinaryIO) -> None:
        """Take in all output, so that the process never waits for a reader."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), output
        )
        try:
            while line := await _next_line(reader):
                self.num_lines += 1
                found = _READY.search(line)
                if found and not self._url.done():
                    self._url.set_result(found[1].decode())
                elif line.strip() not in _UNTOLD:
                    _log.info("%s: %s", name, line.decode(errors="replace").rstrip())
        finally:
            transport.close()


async def _next_line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line with its end; nothing at the end of the output.

    A line longer than the reader holds is no ready line, and is dropped, whatever pieces it comes
    in.
    """
    is_rest = False
    while True:
        try:
            line = await reader.readuntil()
        except asyncio.IncompleteReadError as end:
            return b"" if is_rest else end.partial
        except asyncio.LimitOverrunError as error:
            await reader.readexactly(error.consumed)
            is_rest = True
        else:
            if not is_rest:
                return line
            is_rest = False
