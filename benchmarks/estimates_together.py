"""What are members' tokens worth that learn together, and does the slow loop find it out?

Two members share out the domains of ``clinc150`` and learn them in rounds, by the demo's settings
and without traffic; then one adapter learns from all samples in one place. Each aggregate, and that
adapter after every so many tokens, is measured on test questions of all domains: members' tokens
are worth what it takes in one place to come as far. The discount δ is learned from what members
report alone. With ``--record`` all of it is written, as the tests replay it.

Run as: python benchmarks/estimates_together.py
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from common import Report, checkpoint_folder, make_parser, progress

# isort: split
import torch

from collm.cli.demo_settings import ADAPTER, job_settings
from collm.cli.demo_sites import RANK, Site, deal_sites
from collm.lora.layout import lora_layout
from collm.training.base_version import BaseVersion, fresh_state
from collm.training.config import JobConfig
from collm.workload.samples import load_samples
from federated_sides import Learner, Model, aggregate_updates, read_version
from foretelling_together import (
    Joint,
    Together,
    learned_discounts,
    measured_discounts,
    write_together,
)
from intents import TASK, draw_questions
from offline_losses import LossMeter

_HELD_OUT = 64
"""Samples of each member that it measures aggregates by, as many as the demo's gate takes."""


def main() -> None:
    """Learn together and in one place, then compare."""
    arguments = _arguments()
    report = Report("What members' tokens are worth", arguments)
    sites, questions = deal_sites(2), draw_questions(arguments.questions)
    model = Model(checkpoint_folder(arguments), getattr(torch, arguments.dtype))
    meter = LossMeter(
        model,
        {site.name: [one for one in questions if one.group in site.domains] for site in sites},
    )
    own = LossMeter(model, {site.name: site.samples[:_HELD_OUT] for site in sites})
    fresh = fresh_state(ADAPTER, lora_layout(model.spec, RANK))
    rounds = learn_together(arguments, sites, model, meter, own)
    num_tokens = sum(sum(one.num_tokens.values()) for one in rounds)
    least = fmean(rounds[-1].losses.values())
    found = Together(
        tokens_per_step=job_settings(TASK)["tokens_per_step"],
        num_held_out=_HELD_OUT,
        start_losses=own.losses(fresh),
        rounds=rounds,
        central=learn_in_one_place(arguments, sites, model, meter, least, num_tokens),
    )
    report.table("Round by round", rows(found))
    if arguments.record is not None:
        about = {"made_by": "benchmarks/estimates_together.py", "cpu": report.environment["cpu"]}
        write_together(found, arguments.record, **about)
    report.finish()


def learn_together(
    arguments: argparse.Namespace,
    sites: Sequence[Site],
    model: Model,
    meter: LossMeter,
    own: LossMeter,
) -> list[Joint]:
    """Return every round, its aggregate measured; none is refused."""
    learners = [
        _learner(site.name, site.samples[_HELD_OUT:], model, arguments.seed + index)
        for index, site in enumerate(sites)
    ]
    names = [one.name for one in learners]
    base: BaseVersion | None = None
    weights: Path | None = None
    rounds = []
    with tempfile.TemporaryDirectory(prefix="collm-together-") as folder:
        for number in range(1, arguments.rounds + 1):
            updates = [
                (one.name, one.train(number, arguments.tokens_per_round, base)) for one in learners
            ]
            weights = aggregate_updates(updates, weights, RANK, 1.0, Path(folder))
            base = read_version(weights, model, ADAPTER, number, names)
            rounds.append(
                Joint(
                    num_tokens={name: trained.num_tokens for name, trained in updates},
                    own_losses=own.losses(base.state),
                    losses=meter.losses(base.state),
                )
            )
            progress(f"round {number} of {arguments.rounds}: {rounds[-1]}")
    return rounds


def learn_in_one_place(
    arguments: argparse.Namespace,
    sites: Sequence[Site],
    model: Model,
    meter: LossMeter,
    least: float,
    most: int,
) -> list[tuple[int, float]]:
    """Return the loss by tokens trained on, until it is ``least`` or there are ``most`` tokens."""
    pooled = [sample for site in sites for sample in site.samples[_HELD_OUT:]]
    learner = _learner("all", pooled, model, arguments.seed)
    curve: list[tuple[int, float]] = []
    while not curve or (curve[-1][1] > least and curve[-1][0] < most):
        trained = learner.train(len(curve) + 1, arguments.tokens_per_point, None)
        curve.append((trained.num_tokens, fmean(meter.losses(trained.state).values())))
        progress(f"in one place: {curve[-1]}")
    return curve


def rows(found: Together) -> list[dict[str, str]]:
    """Return a row for each round."""
    learned = learned_discounts(found)
    return [
        {
            "round": str(number),
            "loss": f"{fmean(one.losses.values()):.3f}",
            "δ so far, by tokens in one place": f"{measured:.2f}",
            "δ learned": f"{guess:.2f}",
        }
        for number, (one, measured, guess) in enumerate(
            zip(found.rounds, measured_discounts(found), learned, strict=True), start=1
        )
    ]


def _learner(name: str, samples: Sequence[Any], model: Model, seed: int) -> Learner:
    settings = job_settings(TASK)
    settings |= {"rank": RANK, "seed": seed, "micro_batch_tokens": settings["tokens_per_step"]}
    general = model.prepare_general(load_samples("medquad"))
    return Learner(name, model, samples, general, JobConfig(**settings))


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__ or "", rounds=9, rounds_are="of learning together")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tokens-per-round", type=int, default=2560, help="of each member")
    parser.add_argument("--tokens-per-point", type=int, default=1280, help="in one place")
    parser.add_argument("--questions", type=int, default=15, help="of each domain, at most 90")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what was seen there")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.tokens_per_round, arguments.tokens_per_point = 2, 600, 600
        arguments.questions = 1
    return arguments


if __name__ == "__main__":
    main()
