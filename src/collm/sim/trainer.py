"""Training of a simulated replica: real programs of quanta, knowledge instead of gradients."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random

from collm.cluster.planning.efficiency import Efficiency
from collm.gate.allowance import Allowance
from collm.gate.config import GateConfig
from collm.metrics.goodput import paper_quality
from collm.metrics.totals import Totals
from collm.pacing.quanta import (
    CUT_EVERY,
    Quantum,
    QuantumKind,
    cut,
    evaluation_quanta,
    micro_batch_quanta,
    optimizer_quanta,
)
from collm.sim.curve import Curve
from collm.sim.profile import Profile, TrainingShape
from collm.sim.versions import ADAPTER
from collm.types import Evaluation, GradientSums

_Z = 1.6448536269514722
"""One-sided 95 % point of the normal distribution, for ``GateConfig.error`` of 5 %."""

_NUM_SHAPES = 32
"""Shapes of training that are kept: a run has one, and an evaluation of it for every number of
judges."""

Weights = Callable[[float], Sequence[float]]
"""Each domain's share of a replica's own data, by time."""


class SimTrainer:
    """One adapter's job: micro-batches, optimizer steps and evaluations in their real order.

    What it learns is a number of effective tokens for each domain, of which a step's tokens count
    by ``cluster.planning.efficiency``, B₀ being the batch that the loss curve was measured with.

    Args:
        profile: Shape of training and loss curve.
        weights: The replica's data.
        num_domains: Domains that the loss curve's data had, in equal shares.
        start: Knowledge of what is served at the start.
        random: Draws what an evaluation sees beside the truth.
        totals: Counts steps.
    """

    def __init__(
        self,
        profile: Profile,
        weights: Weights,
        num_domains: int,
        start: Sequence[float],
        random: Random,
        totals: Totals,
    ) -> None:
        shape = profile.training
        self.shape = shape
        self._loss = profile.loss
        self._weights = weights
        self._num_domains = num_domains
        self._random = random
        self._totals = totals
        self.tokens_per_step = shape.tokens_per_step
        """Tokens gathered before an optimizer step; an allocation may change it."""
        self._learn = _micro_batch(shape)
        self._step = _optimizer_step(shape)
        self._evaluate = _evaluation(shape, shape.evaluation_tokens)
        self._compare = self._evaluate
        self._served = self._base = tuple(start)
        self._reported: tuple[float, ...] | None = None
        """The shadow when a round got it, until there is a new base."""
        self._known: tuple[Sequence[float], Sequence[float], float] | None = None
        """What was served when its quality was asked for last, on which data, and the answer."""
        self.knowledge = list(start)
        """Of the shadow."""
        self._num_pending = 0
        self.num_tokens = 0
        """Tokens of finished optimizer steps."""
        self.num_steps = 0
        self._is_evaluation_due = False
        self._allowance = Allowance(GateConfig().evaluation_share)
        self._program: Sequence[Quantum] = ()
        self._place = 0
        self._foreign: tuple[float, ...] | None = None
        self.foreign_rise: float | None = None
        """True difference in loss of the candidate that was compared last, once it was."""
        self._max_tokens: float = math.inf
        """Value of ``num_tokens`` at which training rests."""
        self.evaluation: Evaluation | None = None
        """The latest measured point of its learning."""

    def peek(self) -> Quantum | None:
        """Return the next quantum; ``None`` when there is nothing to learn."""
        if self._place == len(self._program):
            self._program, self._place = self._next_program(), 0
            if not self._program:
                return None
        return self._program[self._place]

    def rest_of_program(self) -> Sequence[Quantum]:
        """Return the next quanta up to where something may change; none if there is no next one."""
        return () if self.peek() is None else self._program[self._place :]

    def ran(self, now_s: float, num_quanta: int = 1) -> tuple[float, ...] | None:
        """Note that the next quanta ran; return the knowledge of a candidate found better.

        Args:
            now_s: When the last of them ended.
            num_quanta: How many; none of them beyond ``rest_of_program``.
        """
        if not self._program:
            return None  # dropped while its quantum ran
        self._place += num_quanta
        if self._place < len(self._program):
            return None
        if self._program is self._learn:
            self._num_pending += self.shape.micro_batch_sample_tokens
            self._allowance.earn(self.shape.micro_batch_tokens)
        elif self._program is self._step:
            self._take_step(now_s)
        else:
            return self._judge(now_s)
        return None

    def begin_round(self, num_tokens: int, now_s: float) -> None:
        """Train on ``num_tokens`` more, once the loss of the round's base is measured.

        What was learned upon the same base, and is in no version yet, is gone on from.
        """
        self._reported = None
        self.train_up_to(self.num_tokens + num_tokens)
        self._note(self._base, now_s)

    def report(self) -> tuple[float, ...]:
        """Return what the shadow knows, and rest until the next round."""
        self._reported = tuple(self.knowledge)
        self.train_up_to(self.num_tokens)
        return self._reported

    def train_up_to(self, num_tokens: float) -> None:
        """Rest once ``num_tokens`` have been trained on in all."""
        self._max_tokens = num_tokens

    @property
    def is_resting(self) -> bool:
        """Whether it has trained on what it was asked to."""
        return self.num_tokens >= self._max_tokens

    def compare(self, knowledge: Sequence[float], num_samples: int) -> None:
        """Compare somebody's candidate with what is served, as the next thing to do."""
        shape = self.shape
        share = num_samples / shape.evaluation_samples
        self._compare = _evaluation(shape, max(1, round(share * shape.evaluation_tokens)))
        self._foreign = tuple(knowledge)
        self.foreign_rise = None

    def serve(self, knowledge: Sequence[float]) -> None:
        """Note what is served from now on; the shadow stays what it is."""
        self._served = tuple(knowledge)

    def adopt(self, knowledge: Sequence[float]) -> None:
        """Go on from a round's outcome, served from now on, with what was learned and is not in it.

        Half-done work is dropped.
        """
        is_in = self._base if self._reported is None else self._reported
        new = zip(knowledge, self.knowledge, is_in, strict=True)
        self.knowledge = [base + (own - old) for base, own, old in new]
        self._served = self._base = tuple(knowledge)
        self._reported = None
        self._program, self._place, self._num_pending = (), 0, 0

    def loss_of(self, knowledge: Sequence[float], now_s: float) -> float:
        """Return the true cross-entropy of such an adapter on the replica's own data."""
        return mean_loss(self._loss, knowledge, self._weights(now_s))

    def quality(self, now_s: float) -> tuple[float, float]:
        """Return Q of what is served on the replica's own data, and its standard error."""
        weights = self._weights(now_s)
        if self._known is None or self._known[0] is not self._served or self._known[1] != weights:
            value = paper_quality(mean_loss(self._loss, self._served, weights))
            self._known = self._served, weights, value
        value = self._known[2]
        # As a replica says: losses vary at least as much as they are large, see ``LossSum``.
        return value, max(
            value / math.sqrt(self.shape.evaluation_samples), value**2 * self._error()
        )

    def least_s(self, program_s: Callable[[Sequence[Quantum]], float]) -> float:
        """Return the time that passes at least until an evaluation of its own ends.

        Args:
            program_s: Returns the least time of a program.
        """
        if self._foreign is not None or self._program is self._evaluate:
            return 0.0
        shape, num_steps = self.shape, 0
        if self._is_evaluation_due:
            num_rows = shape.evaluation_tokens - self._allowance.affordable_rows
            num_batches = -(-num_rows // shape.micro_batch_tokens)
        else:
            num_steps = shape.evaluate_every - self.num_steps % shape.evaluate_every
            num_tokens = num_steps * self.tokens_per_step - self._num_pending
            num_batches = -(-num_tokens // shape.micro_batch_sample_tokens)
        # One of each may have begun.
        learn_s = max(num_batches - 1, 0) * program_s(self._learn)
        return learn_s + max(num_steps - 1, 0) * program_s(self._step) + program_s(self._evaluate)

    def _next_program(self) -> Sequence[Quantum]:
        if self._foreign is not None:
            return self._compare
        if self.is_resting:
            return ()
        if self._num_pending >= self.tokens_per_step:
            return self._step
        is_possible = self._is_evaluation_due and not self._num_pending
        if is_possible and self._allowance.affordable_rows >= self.shape.evaluation_tokens:
            return self._evaluate
        return self._learn

    def _take_step(self, now_s: float) -> None:
        num_tokens, noise = self._num_pending, self.shape.noise_scale_tokens
        worth = num_tokens * Efficiency(noise, self.shape.tokens_per_step).e(num_tokens)
        for domain, weight in enumerate(self._weights(now_s)):
            self.knowledge[domain] += weight * self._num_domains * worth
        num_parts = num_tokens // self.shape.micro_batch_sample_tokens
        if num_parts == 1 and self.num_steps % CUT_EVERY == 0:
            num_parts = 2  # halves; that they take a little longer than the whole is left out
        self._totals.stepped(
            ADAPTER,
            num_tokens,
            self.loss_of(self.knowledge, now_s),
            _gradient(noise, num_tokens, num_parts),
        )
        self.num_tokens += num_tokens
        self._num_pending = 0
        self.num_steps += 1
        if self.num_steps % self.shape.evaluate_every == 0:
            self._is_evaluation_due = True

    def _judge(self, now_s: float) -> tuple[float, ...] | None:
        shape = self.shape
        served_loss = self.loss_of(self._served, now_s)
        if self._foreign is not None:
            self.foreign_rise = self.loss_of(self._foreign, now_s) - served_loss
            self._foreign = None
            return None
        self._allowance.spend(shape.evaluation_tokens)
        self._is_evaluation_due = False
        self._note(self.knowledge, now_s)
        error = self._error()
        rise = self.loss_of(self.knowledge, now_s) - served_loss
        seen = rise + self._random.gauss(0.0, error)
        return tuple(self.knowledge) if seen + _Z * error < 0.0 else None

    def _note(self, knowledge: Sequence[float], now_s: float) -> None:
        """Measure a loss on held-out samples, as well as they can tell."""
        loss = self.loss_of(knowledge, now_s) + self._random.gauss(0.0, self._error())
        self.evaluation = Evaluation(
            num_tokens=self.num_tokens,
            loss=max(loss, 0.0),
            num_samples=self.shape.evaluation_samples,
        )

    def _error(self) -> float:
        """Return the standard error of a mean over the samples of an evaluation."""
        return self.shape.loss_spread / math.sqrt(self.shape.evaluation_samples)


def _gradient(noise_scale: float, num_tokens: int, num_micro_batches: int) -> GradientSums:
    """Return what a step's micro-batches would show of a gradient of length 1 and this noise."""
    if num_micro_batches < 2:
        return GradientSums()
    return GradientSums(
        num_steps=1,
        num_differences=num_micro_batches - 1,
        spread=(num_micro_batches - 1) * noise_scale,
        square=1.0 + noise_scale / num_tokens,
        inverse_tokens=1.0 / num_tokens,
    )


def training_token_s(profile: Profile) -> float:
    """Return the time of training on one token, its part of an optimizer step included."""
    shape, num_tokens = profile.training, profile.training.micro_batch_sample_tokens
    seconds = sum(_seconds(profile, quantum) for quantum in _micro_batch(shape))
    step_s = sum(_seconds(profile, quantum) for quantum in _optimizer_step(shape))
    return seconds / num_tokens + step_s / max(shape.tokens_per_step, num_tokens)


def _seconds(profile: Profile, quantum: Quantum) -> float:
    time = profile.quanta[quantum.kind]
    return time.fixed_s + time.per_unit_s * quantum.size


def mean_loss(curve: Curve, knowledge: Sequence[float], weights: Sequence[float]) -> float:
    """Return the cross-entropy over domains of these shares."""
    return math.fsum(
        weight * curve.at(tokens) for tokens, weight in zip(knowledge, weights, strict=True)
    )


def _loss_chunks(shape: TrainingShape, num_tokens: int) -> tuple[int, ...]:
    return cut(max(1, round(num_tokens * shape.supervised_share)), shape.max_loss_rows)


# Programs are values, made once for all replicas of one shape.


@lru_cache(maxsize=_NUM_SHAPES)
def _micro_batch(shape: TrainingShape) -> tuple[Quantum, ...]:
    num_tokens = shape.micro_batch_tokens
    chunks = _loss_chunks(shape, num_tokens)
    return micro_batch_quanta(2 * shape.num_layers, num_tokens, chunks, ADAPTER)


@lru_cache(maxsize=_NUM_SHAPES)
def _optimizer_step(shape: TrainingShape) -> tuple[Quantum, ...]:
    return optimizer_quanta(
        shape.num_layers, shape.layer_parameters, shape.max_optimizer_parameters, ADAPTER
    )


@lru_cache(maxsize=_NUM_SHAPES)
def _evaluation(shape: TrainingShape, num_rows: int) -> tuple[Quantum, ...]:
    """Return an evaluation's quanta: a copy of the candidate, then its held-out micro-batches."""
    quanta = [Quantum(QuantumKind.STAGE, shape.num_layers * shape.layer_parameters, 0, ADAPTER)]
    num_batches = -(-num_rows // shape.micro_batch_tokens)
    for num_tokens in cut(num_rows, -(-num_rows // num_batches)):
        chunks = _loss_chunks(shape, num_tokens)
        quanta += evaluation_quanta(2 * shape.num_layers, num_tokens, chunks, ADAPTER)
    return tuple(quanta)
