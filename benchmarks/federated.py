"""What do rounds of learning together reach, beside learning centrally and alone?

Two members have five domains of clinc150 each, and nothing of the other's; questions that fit no
intent are dealt to both. Without traffic, each way trains on the same number of sample tokens:

- central: one adapter, from the pooled samples, all tokens of all members in one go;
- federated: in each round every member trains from the latest aggregate, then svd of all updates;
  what a front's gate would refuse is not refused here, so that this measures learning alone;
- local-only: each member the tokens that it trains on in all rounds, in one go, from its own.

All learn by the demo's settings. An optimizer step is of as many tokens in each way: members of a
round each bring their part of them, for what they step apart is averaged afterwards.

All run the replicas' own round job, aggregation and engine, in one process, one after the other.
Exact match is of greedy answers to held-out test questions, as many of each domain.

Run as: python benchmarks/federated.py [--seeds 0 1 2]
"""

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from common import Report, checkpoint_folder, make_parser, progress

# isort: split
import torch

from collm.chats import Sample
from collm.cli.demo_settings import job_settings
from collm.cli.demo_sites import RANK
from collm.lora.state import AdapterState
from collm.training.base_version import BaseVersion
from collm.training.config import JobConfig
from collm.training.samples import TokenSample
from collm.workload.samples import by_group, group_split, load_samples
from federated_scores import Comparison, Score, compare
from federated_sides import Examinee, Learner, Model, aggregate_updates, read_version

_TASK = "clinc150"
_OUT_OF_SCOPE = "oos"
_CENTRAL = "central"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is learned and asked, the same for every seed."""

    members: Mapping[str, Sequence[Sample]]
    """Each member's own samples."""
    general: Sequence[TokenSample]
    questions: Sequence[Sample]

    @property
    def domains(self) -> dict[str, frozenset[str]]:
        """Return what each member alone has samples of."""
        return {
            member: frozenset(sample.group for sample in samples) - {_OUT_OF_SCOPE}
            for member, samples in self.members.items()
        }


class Trial:
    """All three ways to learn with one seed.

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

    def central(self) -> AdapterState:
        """Learn from the pooled samples."""
        pooled = [sample for samples in self._task.members.values() for sample in samples]
        tokens = len(self._task.members) * self._num_rounds * self._round_tokens
        learner = self._learner(_CENTRAL, pooled, 0, self._tokens_per_step)
        return learner.train(1, tokens, None).state

    def local(self) -> dict[str, AdapterState]:
        """Learn from each member's own samples."""
        tokens = self._num_rounds * self._round_tokens
        learners = self._learners(self._tokens_per_step)
        return {learner.name: learner.train(1, tokens, None).state for learner in learners}

    def federated(self, folder: Path) -> AdapterState:
        """Learn together, in rounds."""
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
        settings = job_settings(_TASK) | {
            "adapter": self._adapter,
            "rank": RANK,
            "seed": self._seed + index,
            "tokens_per_step": tokens_per_step,
            "micro_batch_tokens": tokens_per_step,
        }
        config = JobConfig(**settings)
        return Learner(name, self._model, samples, self._task.general, config)


def main() -> None:
    """Learn in three ways for each seed, then report."""
    arguments = _arguments()
    report = Report("Learning together, centrally and alone", arguments)
    model = Model(checkpoint_folder(arguments), getattr(torch, arguments.dtype))
    task = _make_task(model, arguments)
    examinee = Examinee(model, RANK)
    rows = [_run_seed(report, model, task, examinee, seed) for seed in arguments.seeds]
    report.table("Exact match by seed; local-only is the mean over members", rows)
    tokens = arguments.rounds * arguments.tokens_per_round
    report.note(
        f"{arguments.rounds} rounds of {arguments.tokens_per_round} sample tokens a member: "
        f"federated and local-only {tokens} a member, central {len(task.members) * tokens}; "
        f"the server's rate is {arguments.server_rate:g}; steps of {arguments.tokens_per_step} "
        "tokens, of which each member of a round brings its part; "
        f"{len(task.questions)} questions"
    )
    report.finish()


def _run_seed(
    report: Report, model: Model, task: Task, examinee: Examinee, seed: int
) -> dict[str, str]:
    trial = Trial(model, task, report.arguments, seed)
    spent_s: dict[str, float] = {}

    def timed(way: str, learn: Any) -> Any:
        progress(f"seed {seed}: {way}")
        started_s = time.perf_counter()
        learned = learn()
        spent_s[way] = time.perf_counter() - started_s
        progress(f"seed {seed}: {way} took {spent_s[way] / 60.0:.1f} minutes")
        return learned

    def score(way: str, state: AdapterState) -> Score:
        found = Score.of(examinee.answer(task.questions, state))
        progress(f"seed {seed}: {way} {found.share(found.num_asked):.1%} right")
        return found

    with tempfile.TemporaryDirectory(prefix="collm-federated-") as folder:
        federated = score("federated", timed("federated", lambda: trial.federated(Path(folder))))
        central = score("central", timed("central", trial.central))
        local = {name: score(name, s) for name, s in timed("local-only", trial.local).items()}
    comparison = compare(central, federated, local, task.domains)
    report.raw[f"seed {seed}"] = {
        "comparison": asdict(comparison),
        "spent_s": spent_s,
        "rounds": trial.history,
        "right_by_domain": {
            "central": dict(central.num_right),
            "federated": dict(federated.num_right),
            **{f"local-only {name}": dict(found.num_right) for name, found in local.items()},
        },
        "asked_by_domain": dict(central.num_asked),
    }
    return _row(seed, comparison, spent_s)


def _row(seed: int, found: Comparison, spent_s: Mapping[str, float]) -> dict[str, str]:
    return {
        "seed": str(seed),
        "central": f"{found.central:.1%}",
        "federated": f"{found.federated:.1%}",
        "federated / central": _ratio(found.to_central),
        "local-only": f"{found.local:.1%}",
        "foreign domains, federated": f"{found.federated_foreign:.1%}",
        "foreign, local-only": f"{found.local_foreign:.1%}",
        "foreign, ratio": _ratio(found.foreign_gain),
        "own, local-only": f"{found.local_own:.1%}",
        "minutes (federated, central, local-only)": ", ".join(
            f"{seconds / 60:.1f}" for seconds in spent_s.values()
        ),
    }


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _make_task(model: Model, arguments: argparse.Namespace) -> Task:
    parts = group_split(load_samples(_TASK, "train"), arguments.members, (_OUT_OF_SCOPE,))
    random = Random(0)
    questions = [
        question
        for domain, samples in by_group(load_samples(_TASK, "test")).items()
        if domain != _OUT_OF_SCOPE
        for question in random.sample(samples, min(arguments.questions, len(samples)))
    ]
    return Task(
        members={f"r{index}": part for index, part in enumerate(parts)},
        general=model.prepare_general(load_samples("medquad")),
        questions=questions,
    )


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__ or "", rounds=6, rounds_are="federated rounds")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tokens-per-round", type=int, default=8192, help="of each member")
    parser.add_argument("--tokens-per-step", type=int, default=512, help="of all members together")
    parser.add_argument("--server-rate", type=float, default=1.0, help="of aggregates")
    parser.add_argument("--members", type=int, default=2, help="who learn together")
    parser.add_argument("--questions", type=int, default=45, help="of each domain, at most 90")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.tokens_per_round = 2, 800
        arguments.questions, arguments.seeds = 1, [0]
    return arguments


if __name__ == "__main__":
    main()
