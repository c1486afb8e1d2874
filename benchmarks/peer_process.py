"""Engines that run in the peers' own environment, asked from here (``peers/`` has their side)."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_sides import BASE

_WORKERS = Path(__file__).parent / "peers"


class PeerProcess:
    """One peer. It stands still while others are measured: some engines spin while they wait."""

    def __init__(self, python: Path, worker: str, *arguments: str) -> None:
        """Start ``peers/<worker>.py`` under ``python``, and wait until its model is loaded."""
        # A group of its own, as an engine may have processes below it.
        self._process = subprocess.Popen(
            [python, _WORKERS / f"{worker}.py", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.description: str = self._answer()
        self._send(signal.SIGSTOP)

    def decode(
        self, prompts: Sequence[Sequence[int]], models: Sequence[str], num_new: int
    ) -> float:
        """Return output tokens per second while all prompts decode together, under the base."""
        assert all(model == BASE for model in models), models
        return float(self._ask({"what": "decode", "prompts": prompts, "num_new": num_new}))

    def prefill(self, prompts: Sequence[Sequence[int]]) -> float:
        """Return prompt tokens per second until every prompt has its first output token."""
        return float(self._ask({"what": "prefill", "prompts": prompts}))

    def close(self) -> None:
        """End the process and all below it."""
        self._send(signal.SIGKILL)
        self._process.wait()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._send(signal.SIGCONT)
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self._send(signal.SIGSTOP)
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} ended with {self._process.wait()}")
        return json.loads(line)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # ended by itself, which is told elsewhere
            os.killpg(self._process.pid, number)
