"""What a peer's process does: answer one request a line, in JSON, until its input ends.

Nothing here is of ``collm``: these files run in the peers' own environment.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

Prompts = list[list[int]]


class Engine(Protocol):
    """A peer with its model loaded."""

    def describe(self) -> str:
        """Return version, number format and threads, for people."""
        ...

    def decode(self, prompts: Prompts, num_new: int) -> float:
        """Return output tokens per second while all prompts decode together."""
        ...

    def prefill(self, prompts: Prompts) -> float:
        """Return prompt tokens per second until every prompt has its first output token."""
        ...


def serve(load: Callable[[], Engine]) -> None:
    """Load the engine, say what it is, and answer."""
    # Libraries print to stdout as they like; the answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    engine = load()
    _say(answers, engine.describe())
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if request["what"] == "decode":
            _say(answers, engine.decode(request["prompts"], request["num_new"]))
        else:
            _say(answers, engine.prefill(request["prompts"]))


def _say(answers: Any, value: Any) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()
