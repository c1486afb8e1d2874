"""Does an adapter learn as much on a quantized base? Exact match of the demo's task by format.

Each format trains one adapter by the demo's settings from all ten domains of clinc150, on as many
sample tokens and from the same seed, nothing served; then it answers held-out test questions
greedily, on the base that it was trained on. Formats are compared question by question.

Run as: python benchmarks/quantized_learning.py
"""

import argparse
import time
from collections.abc import Sequence

from common import Report, checkpoint_folder, make_parser, progress

# isort: split
import torch

from collm.chats import Sample
from collm.cli.demo_settings import job_settings
from collm.cli.demo_sites import RANK
from collm.ops.quantized import Quantization
from collm.training.config import JobConfig
from collm.workload.samples import load_samples
from federated_sides import Examinee, Learner, Model
from intents import TASK, TOKENS_A_SAMPLE, draw_questions

_FORMATS: dict[str, Quantization | None] = {"none": None, "int8": "int8", "int4": "int4"}


def main() -> None:
    """Learn and ask with each format, then report."""
    args = _arguments()
    report = Report("Learning on a quantized base", args)
    questions = draw_questions(args.questions)
    right: dict[str, list[bool]] = {}
    rows = []
    for name in args.formats:
        started_s = time.perf_counter()
        right[name], loss = _learn(args, _FORMATS[name], questions)
        rows.append(
            {
                "weights": name,
                "loss before and after": loss,
                "exact match": f"{sum(right[name]) / len(questions):.1%}",
                f"right here alone, {args.formats[0]} alone": _differing(
                    right[name], right[args.formats[0]]
                ),
                "minutes": f"{(time.perf_counter() - started_s) / 60.0:.1f}",
            }
        )
        progress(str(rows[-1]))
    report.raw["right"] = right
    report.table("Exact match by format of the base", rows)
    report.note(f"{args.samples} samples, {len(questions)} questions, seed {args.seed}")
    report.finish()


def _learn(
    args: argparse.Namespace, quantization: Quantization | None, questions: Sequence[Sample]
) -> tuple[list[bool], str]:
    """Return which questions are answered exactly, and the held-out loss before and after."""
    dtype = getattr(torch, args.dtype)
    model = Model(checkpoint_folder(args), dtype, quantization)
    settings = job_settings(TASK)
    # Micro-batches as long as a step: the demo's are not longer, for its quanta are short.
    settings |= {"micro_batch_tokens": settings["tokens_per_step"], "rank": RANK, "seed": args.seed}
    general = model.prepare_general(load_samples("medquad"))
    learner = Learner("all", model, load_samples(TASK), general, JobConfig(**settings))
    trained = learner.train(1, args.samples * TOKENS_A_SAMPLE, None)
    answers = Examinee(model, RANK).answer(questions, trained.state)
    losses = (trained.loss_before, trained.loss_after)
    loss = ", ".join("–" if nats is None else f"{nats:.3f}" for nats in losses)
    return [is_right for _, is_right in answers], loss


def _differing(right: Sequence[bool], base: Sequence[bool]) -> str:
    """Return how many answers are right on one side alone, as ``here, there``."""
    here = sum(a and not b for a, b in zip(right, base, strict=True))
    there = sum(b and not a for a, b in zip(right, base, strict=True))
    return f"{here}, {there}"


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__ or "", rounds=1, rounds_are="not used")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--samples", type=int, default=1_500, help="that each format learns")
    parser.add_argument("--questions", type=int, default=20, help="of each domain, at most 90")
    parser.add_argument("--formats", nargs="+", choices=_FORMATS, default=list(_FORMATS))
    parser.add_argument("--seed", type=int, default=0, help="first factors and order of samples")
    args = parser.parse_args()
    if args.quick:
        args.samples, args.questions = 20, 1
    return args


if __name__ == "__main__":
    main()
