"""How fast is an intent learned, by learning rate and size of step?

Each way trains one adapter from all ten domains of clinc150, nothing served, and stops to be asked:
exact match of greedy answers to held-out test questions, as many of each domain.

Run as: python benchmarks/learning_rate.py [--ways 1e-3:20 2e-3:20 2e-3:12]
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from common import Report, checkpoint_folder, make_parser, progress

# isort: split
import torch

from collm.chats import Sample
from collm.training.config import JobConfig
from collm.workload.samples import load_samples
from federated_sides import Examinee, Learner, Model
from intents import TASK, TOKENS_A_SAMPLE, draw_questions

RANK = 16
_WHOLE_TASK = "all"


class Way(NamedTuple):
    """How one adapter learns."""

    learning_rate: float
    samples_per_step: int

    @classmethod
    def read(cls, text: str) -> "Way":
        """Read ``RATE:SAMPLES``."""
        rate, _, samples = text.partition(":")
        return cls(float(rate), int(samples))

    def __str__(self) -> str:
        return f"{self.learning_rate:g}, {self.samples_per_step} a step"

    def config(self, seed: int) -> JobConfig:
        return JobConfig(
            adapter=f"intents-{seed}",
            data=TASK,
            rank=RANK,
            learning_rate=self.learning_rate,
            tokens_per_step=self.samples_per_step * TOKENS_A_SAMPLE,
            seed=seed,
        )


def shares(
    model: Model,
    examinee: Examinee,
    questions: Sequence[Sample],
    way: Way,
    args: argparse.Namespace,
) -> list[float]:
    """Learn one way; return the exact match at each stop."""
    general = model.prepare_general(load_samples("medquad"))
    learner = Learner(
        _WHOLE_TASK, model, load_samples(TASK, "train"), general, way.config(args.seed)
    )
    found = []
    for stop in range(1, args.rounds + 1):
        trained = learner.train(stop, args.samples * TOKENS_A_SAMPLE, None)
        answers = examinee.answer(questions, trained.state)
        found.append(sum(is_right for _, is_right in answers) / len(answers))
        progress(f"{way}: {trained.num_examples} samples, {found[-1]:.0%}")
    return found


def main() -> None:
    """Learn each way, then print one line per stop."""
    args = _arguments()
    report = Report("Learning rate and size of steps", args)
    model = Model(checkpoint_folder(args), getattr(torch, args.dtype))
    questions = draw_questions(args.questions)
    examinee = Examinee(model, RANK)
    found = {str(way): shares(model, examinee, questions, way, args) for way in args.ways}
    rows = [
        {
            "samples": f"{(stop + 1) * args.samples:,}",
            **{way: f"{values[stop]:.0%}" for way, values in found.items()},
        }
        for stop in range(args.rounds)
    ]
    report.table("Exact match", rows)
    report.note(f"{len(questions)} questions, seed {args.seed}")
    report.finish()


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__ or "", rounds=3, rounds_are="stops to be asked at")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--samples", type=int, default=400, help="learned between two stops")
    parser.add_argument("--questions", type=int, default=30, help="of each domain, at most 90")
    parser.add_argument("--seed", type=int, default=0, help="first factors and order of samples")
    parser.add_argument(
        "--ways",
        type=Way.read,
        nargs="+",
        default=[Way(1e-3, 20), Way(2e-3, 20), Way(2e-3, 12)],
        metavar="RATE:SAMPLES",
        help="learning rate and samples per optimizer step",
    )
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.samples, args.questions = 1, 20, 1
    return args


if __name__ == "__main__":
    main()
