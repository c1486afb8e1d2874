"""Processes that write to a data folder without end, and are killed.

A writer is a module of this package, run as ``python -m factories.WRITER FOLDER KILL_AT``: it
prints one line after each thing that has been acknowledged, and kills itself before line
``KILL_AT`` of the store's code (0: never).
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from factories.child_path import PYTHONPATH


def kill_self_at(line: int) -> None:
    """Kill this process before it runs line ``line``, counted from now, of the store's code."""
    remaining = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal remaining
        if f"collm{os.sep}store" not in frame.f_code.co_filename:
            return None
        if event == "line":
            remaining -= 1
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def acknowledge(*words: object) -> None:
    """Tell the parent what it may rely on from now on."""
    print(*words, flush=True)


def acknowledged_before_line(writer: str, folder: Path, line: int) -> list[str]:
    """Let a writer kill itself before a line; return what it acknowledged."""
    with _start(writer, folder, line) as process:
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    assert process.returncode == -9
    return lines


def acknowledged_before_kill(writer: str, folder: Path, num_lines: int) -> list[str]:
    """Kill a writer once it has acknowledged so much; return that and what followed."""
    with _start(writer, folder, 0) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(num_lines)]
        process.kill()
        lines += process.stdout.readlines()
    assert process.returncode == -9
    return [line.strip() for line in lines]


def _start(writer: str, folder: Path, kill_at: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"factories.{writer}", str(folder), str(kill_at)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )
