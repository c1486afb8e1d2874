"""The arms of ``slo.py``, each in a process of its own.

A replica computes in parallel on one thread, its step loop's: with the workers of several loops in
one process OpenMP puts all of them to sleep after every product, which no real replica suffers
from. Arms whose turn it is not wait, asleep.
"""

import asyncio
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from child_life import end_with_parent
from collm.model.checkpoint import Checkpoint
from collm.pacing.config import PacingConfig
from slo_arms import ArmReplica, Prompt, budget_of, learn_first_version
from slo_plan import Turn
from slo_report import Block

_SPAWN = multiprocessing.get_context("spawn")
_SWITCH_INTERVAL_S = 0.001
"""As the replica's process has it."""
_CLOSE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """What all arms have in common."""

    checkpoint: Path
    dtype: str
    threads: int


@dataclass(frozen=True, slots=True)
class _Replay:
    prompts: tuple[Prompt, ...]
    turn: Turn
    max_drain_s: float
    is_training: bool


class ArmProcess:
    """One arm's replica and the client that replays to it; opens at once, see ``wait``.

    Args:
        name: The arm's.
        settings: What it has in common with others.
        data_dir: Its own folder; what is there is taken up.
    """

    def __init__(self, name: str, settings: ArmSettings, data_dir: Path) -> None:
        self._connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_work, args=(theirs, name, settings, data_dir))
        self._process.start()
        theirs.close()

    def wait(self) -> None:
        """Wait until the replica and its job are there; before anything else."""
        assert self._connection.recv() == "ready"

    def replay(
        self, prompts: Sequence[Prompt], turn: Turn, max_drain_s: float, *, is_training: bool
    ) -> Block:
        """See ``ArmReplica.replay``; raises ``EOFError`` when the process has died."""
        self._connection.send(_Replay(tuple(prompts), turn, max_drain_s, is_training))
        block: Block = self._connection.recv()
        return block

    def close(self) -> None:
        """End the replica and its process."""
        self._connection.close()
        self._process.join(_CLOSE_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()


def learn_first(settings: ArmSettings, data_dir: Path) -> str | None:
    """Train in a process of its own until a version is active; return its id."""
    with ProcessPoolExecutor(1, mp_context=_SPAWN) as pool:
        return pool.submit(_learn_first, settings, data_dir).result()


def _learn_first(settings: ArmSettings, data_dir: Path) -> str | None:
    checkpoint, dtype = _prepare(settings)
    return asyncio.run(learn_first_version(checkpoint, dtype, data_dir))


def _work(connection: Connection, name: str, settings: ArmSettings, data_dir: Path) -> None:
    checkpoint, dtype = _prepare(settings)
    arm = ArmReplica(checkpoint, dtype, PacingConfig(budget=budget_of(name)), data_dir)
    try:
        asyncio.run(_serve(connection, arm))
    finally:
        arm.close()


async def _serve(connection: Connection, arm: ArmReplica) -> None:
    await arm.ready()
    connection.send("ready")
    while True:
        try:
            task: _Replay = connection.recv()
        except EOFError:
            return
        block = await arm.replay(
            task.prompts, task.turn, task.max_drain_s, is_training=task.is_training
        )
        connection.send(block)


def _prepare(settings: ArmSettings) -> tuple[Checkpoint, torch.dtype]:
    end_with_parent()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    torch.set_num_threads(settings.threads)
    return Checkpoint(settings.checkpoint), getattr(torch, settings.dtype)
