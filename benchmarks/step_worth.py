"""What is a token worth by the size of its optimizer step, and does the slow loop know?

One adapter learns ``clinc150`` at first in steps as configured. From there it goes on in steps of
each size that the planner may choose, with the same samples in the same order, and stops after
every so many tokens to be measured on test questions. A token's worth in steps of B tokens is how
many tokens of configured steps come to the same loss. The slow loop reckons it from the gradient
noise scale that all steps measure on their way (``planning.efficiency``). With
``--record`` all of it is written, as the tests replay it.

Run as: python benchmarks/step_worth.py
"""

import argparse
from pathlib import Path

from common import Report, checkpoint_folder, make_parser, progress

# isort: split
import torch

from collm.replica.job_builder import conversation_of
from collm.training.config import JobConfig
from collm.training.samples import TokenSample, prepare_samples
from collm.types import GradientSums
from collm.workload.samples import load_samples
from federated_sides import Model
from foretelling_steps import Steps, believed, common_losses, measured_worths, write_steps
from intents import TASK, draw_questions
from noise_scale import make_learning
from offline_losses import LossMeter
from unhurried import drain

_FACTORS = (1, 2, 4, 8)
"""Of the configured size, those that the planner chooses from."""
_ALL = "all"


class Trial:
    """One size of steps, from the same beginning as all.

    Args:
        model: What is adapted.
        samples: What is learned, the same of all.
        meter: What measures.
        arguments: How it learns.
    """

    def __init__(
        self,
        model: Model,
        samples: tuple[TokenSample, ...],
        meter: LossMeter,
        arguments: argparse.Namespace,
    ) -> None:
        config = JobConfig(
            adapter="steps",
            data=TASK,
            tokens_per_step=arguments.tokens_per_step,
            replay_share=0.0,
            seed=arguments.seed,
        )
        self._learning = make_learning(config, model.decoder, samples)
        self._meter = meter
        self._num_tokens = 0
        self._num_steps = 0
        self._gradient = GradientSums()

    def learn(self, num_tokens: int) -> None:
        """Take steps until so many tokens were trained on since the beginning."""
        while self._num_tokens < num_tokens:
            while not self._learning.is_step_due:
                drain(self._learning.learn())
            report = drain(self._learning.step())
            self._num_tokens += report.num_tokens
            self._num_steps += 1
            self._gradient = self._gradient.plus(report.gradient)

    def go_on(self, tokens_per_step: int, points: int, tokens_per_point: int) -> Steps:
        """Learn with steps of this size from now on; return what came of it."""
        self._learning.size_steps(tokens_per_step)
        self._num_tokens, self._num_steps, self._gradient = 0, 0, GradientSums()
        curve = [(0, self._loss())]
        for number in range(1, points + 1):
            self.learn(number * tokens_per_point)
            curve.append((self._num_tokens, self._loss()))
            progress(f"steps of {tokens_per_step}: {curve[-1][0]} tokens, {curve[-1][1]:.3f}")
        return Steps(
            tokens_per_step=self._num_tokens / self._num_steps,
            curve=curve,
            gradient=self._gradient,
        )

    def _loss(self) -> float:
        return self._meter.losses(self._learning.state.shadow.state())[_ALL]


def main() -> None:
    """Learn with every size, then compare."""
    arguments = _arguments()
    report = Report("What a token is worth by the size of its step", arguments)
    model = Model(checkpoint_folder(arguments), getattr(torch, arguments.dtype))
    meter = LossMeter(model, {_ALL: draw_questions(arguments.questions)})
    conversations = [conversation_of(one) for one in load_samples(TASK, "train")]
    samples = prepare_samples(conversations, model.tokenizer, max_tokens=256).samples
    sizes = []
    for factor in _FACTORS:
        trial = Trial(model, samples, meter, arguments)
        trial.learn(arguments.warm_up_tokens)
        tokens_per_step = factor * arguments.tokens_per_step
        sizes.append(trial.go_on(tokens_per_step, arguments.rounds, arguments.tokens_per_point))
    base = sizes[0]
    report.table("A token's worth", rows(sizes, base))
    report.note(f"gradient noise scale: {believed(sizes, base).phi_tokens:,.0f} tokens")
    if arguments.record is not None:
        about = {"made_by": "benchmarks/step_worth.py", "cpu": report.environment["cpu"]}
        write_steps(sizes, arguments.record, **about)
    report.finish()


def rows(sizes: list[Steps], base: Steps) -> list[dict[str, str]]:
    """Return a row for each size."""
    losses = common_losses(sizes)
    names = [f"to loss {loss:.2f}" for loss in losses]
    efficiency, found = believed(sizes, base), measured_worths(sizes, base, losses)
    return [
        {
            "tokens a step": f"{one.tokens_per_step:,.0f}",
            "e(B)": f"{efficiency.e(one.tokens_per_step):.2f}",
            **dict(zip(names, (f"{worth:.2f}" for worth in worths), strict=True)),
        }
        for one, worths in zip(sizes, found, strict=True)
    ]


def _arguments() -> argparse.Namespace:
    parser = make_parser(__doc__ or "", rounds=16, rounds_are="stops to be measured at")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tokens-per-step", type=int, default=512, help="as configured")
    parser.add_argument("--warm-up-tokens", type=int, default=8192, help="before sizes part")
    parser.add_argument("--tokens-per-point", type=int, default=4096, help="between two stops")
    parser.add_argument("--questions", type=int, default=15, help="of each domain, at most 90")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what was seen there")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.warm_up_tokens, arguments.tokens_per_point = 2, 512, 512
        arguments.questions = 1
    return arguments


if __name__ == "__main__":
    main()
