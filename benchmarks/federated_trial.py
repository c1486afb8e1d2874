"""The ways to learn that ``federated.py`` compares: together, centrally, and each member alone."""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collm.chats import Sample
from collm.cli.demo_settings import job_settings
from collm.cli.demo_sites import RANK
from collm.lora.state import AdapterState
from collm.training.base_version import BaseVersion
from collm.training.config import JobConfig
from collm.training.samples import TokenSample
from common import progress
from federated_sides import Learner, Model, aggregate_updates, read_version
from intents import TASK

CENTRAL = "central"
FEDERATED = "federated"
_LOCAL_ONLY = "local-only"

Members = Mapping[str, Sequence[Sample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is learned and asked, the same for every seed."""

    members: Members
    """Each member's own samples."""
    general: Sequence[TokenSample]
    questions: Sequence[Sample]


class Trial:
    """The ways to learn with one seed.

    Args:
        model: The base model.
        task: What is learned.
        arguments: The command line's.
        seed: Chooses the adapter's first factors and the order of samples.
    """

    def __init__(self, model: Model, task: Task, arguments: argparse.Namespace, seed: int) -> None:
        self._model = model
        self._task = task
        self._num_rounds: int = arguments.rounds
        self._round_tokens: int = arguments.tokens_per_round
        self._server_rate: float = arguments.server_rate
        self._tokens_per_step: int = arguments.tokens_per_step
        self._seed = seed
        self.history: list[dict[str, Any]] = []
        """What each member reported in each round."""

    def learn(self, way: str) -> AdapterState:
        """Learn in one of ``ways_to_learn``."""
        if way == FEDERATED:
            with tempfile.TemporaryDirectory(prefix="collm-federated-") as folder:
                return self._federated(Path(folder))
        return self._central() if way == CENTRAL else self._local(way)

    def _central(self) -> AdapterState:
        pooled = [sample for samples in self._task.members.values() for sample in samples]
        tokens = len(self._task.members) * self._num_rounds * self._round_tokens
        learner = self._learner(CENTRAL, pooled, 0, self._tokens_per_step)
        return learner.train(1, tokens, None).state

    def _local(self, way: str) -> AdapterState:
        tokens = self._num_rounds * self._round_tokens
        learners = {local_way(one.name): one for one in self._learners(self._tokens_per_step)}
        return learners[way].train(1, tokens, None).state

    def _federated(self, folder: Path) -> AdapterState:
        learners = self._learners(self._tokens_per_step // len(self._task.members))
        names = [learner.name for learner in learners]
        base: BaseVersion | None = None
        weights: Path | None = None
        for number in range(1, self._num_rounds + 1):
            updates = [
                (learner.name, learner.train(number, self._round_tokens, base))
                for learner in learners
            ]
            self.history += [
                {
                    "round": number,
                    "member": member,
                    "num_examples": trained.num_examples,
                    "num_tokens": trained.num_tokens,
                    "loss_before": trained.loss_before,
                    "loss_after": trained.loss_after,
                }
                for member, trained in updates
            ]
            weights = aggregate_updates(updates, weights, RANK, self._server_rate, folder)
            base = read_version(weights, self._model, self._adapter, number, names)
            progress(f"seed {self._seed}: round {number} of {self._num_rounds} is aggregated")
        assert base is not None
        return base.state

    @property
    def _adapter(self) -> str:
        # The first factors follow from the adapter's name, so that members begin alike.
        return f"intents-{self._seed}"

    def _learners(self, tokens_per_step: int) -> list[Learner]:
        return [
            self._learner(member, samples, index, tokens_per_step)
            for index, (member, samples) in enumerate(self._task.members.items())
        ]

    def _learner(
        self, name: str, samples: Sequence[Sample], index: int, tokens_per_step: int
    ) -> Learner:
        settings = job_settings(TASK) | {
            "adapter": self._adapter,
            "rank": RANK,
            "seed": self._seed + index,
            "tokens_per_step": tokens_per_step,
            "micro_batch_tokens": tokens_per_step,
        }
        config = JobConfig(**settings)
        return Learner(name, self._model, samples, self._task.general, config)


def ways_to_learn(members: Members) -> list[str]:
    """Return the names of the ways to learn: together, centrally, and each member alone."""
    return [FEDERATED, CENTRAL, *map(local_way, members)]


def local_way(member: str) -> str:
    """Return the name of the way of a member alone."""
    return f"{_LOCAL_ONLY}-{member}"
