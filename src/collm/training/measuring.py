"""Losses of samples under an adapter that does not learn, as quanta."""

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from collm.gate.exact_match import MAX_ANSWER_TOKENS, ExactMatch, exact_of
from collm.gate.loss_sum import LossSum
from collm.gate.trial import PairedLoss
from collm.lora.bank import AdapterBank
from collm.lora.state import AdapterState
from collm.model.decoder import Decoder
from collm.model.layers import Target
from collm.pacing.quanta import Quantum, QuantumKind
from collm.training.events import BaselineReport
from collm.training.microbatch import MicroBatch
from collm.training.passes import Operand, Pass
from collm.training.samples import TokenSample

_MAX_LOSS_ROWS = 256
_MIN_LOSS_ROWS = 8
_PLANNED_SHARE = 0.85
"""Of the longest quantum wanted. A size's upper bound holds for 95 quanta of 100, the limit is to
hold for 99; on a replica that serves, the slowest hundredth took a tenth longer than the bound."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One sample under one adapter."""

    loss: float
    """Mean nats per supervised token."""
    is_exact: bool | None
    """Whether greedy decoding would give its answer, and end there: each of its tokens is the most
    likely one after those before it. ``None`` for an answer too long to be judged so."""


def paired(sample: TokenSample, active: Measured, candidate: Measured) -> PairedLoss:
    """Return one sample under both sides, as the gate takes it."""
    return PairedLoss(
        sample_id=sample.sample_id,
        slice=sample.slice,
        active=active.loss,
        candidate=candidate.loss,
        active_is_exact=active.is_exact,
        candidate_is_exact=candidate.is_exact,
    )


@dataclass(frozen=True, slots=True)
class MeanLoss:
    """A mean over an adapter's own samples, general text left out."""

    loss: float
    """Nats per supervised token; infinite if it is not finite on some sample."""
    num_samples: int
    error: float = math.inf
    """Standard error of the mean, in nats per token."""
    exact: ExactMatch = ExactMatch()
    """Of the short answers among them."""

    @property
    def finite(self) -> float | None:
        """The loss, or ``None`` if it is not finite."""
        return self.loss if math.isfinite(self.loss) else None

    def report(self, adapter: str, step: int) -> BaselineReport:
        """Return it as what is told of what is served."""
        return BaselineReport(
            adapter=adapter,
            step=step,
            loss=self.loss,
            num_samples=self.num_samples,
            error=self.error,
            exact=self.exact,
        )


def mean_of(found: Sequence[Measured]) -> MeanLoss:
    """Return the mean over at least one sample."""
    exact = exact_of(one.is_exact for one in found)
    sums = LossSum()
    for one in found:
        if not math.isfinite(one.loss):
            return MeanLoss(math.inf, len(found), exact=exact)
        sums.add(one.loss)
    mean, error = sums.mean, sums.error
    assert mean is not None
    assert error is not None
    return MeanLoss(mean, len(found), error, exact)


class QuantumSizes(Protocol):
    """Knows how large a quantum may be."""

    def max_size(self, kind: QuantumKind, limit_s: float) -> int:
        """Return the largest size of this kind that stays within ``limit_s`` seconds."""
        ...


class Limits:
    """How large micro-batches and loss quanta may be now.

    Args:
        sizes: What a length of time is enough for.
        max_quantum_s: Longest quantum wanted.
        max_tokens: Most tokens of a micro-batch, however fast.
    """

    def __init__(self, sizes: QuantumSizes, max_quantum_s: float, max_tokens: int) -> None:
        self._sizes = sizes
        self._planned_s = _PLANNED_SHARE * max_quantum_s
        self._max_tokens = max_tokens

    def max_tokens(self) -> int:
        """Return the most tokens of a micro-batch."""
        return max(1, min(self._max_tokens, self.max_rows()))

    def max_rows(self) -> int:
        """Return the most rows of half a layer, for which a long sample is cut."""
        kinds = (QuantumKind.FORWARD, QuantumKind.BACKWARD)
        return min(self._sizes.max_size(kind, self._planned_s) for kind in kinds)

    def max_loss_rows(self, kind: QuantumKind) -> int:
        """Return the most positions of one loss quantum."""
        bound = self._sizes.max_size(kind, self._planned_s)
        return min(max(bound, _MIN_LOSS_ROWS), _MAX_LOSS_ROWS)


class Meter:
    """Measures losses for one adapter's job."""

    def __init__(self, decoder: Decoder, adapter: str, limits: Limits) -> None:
        """Measure on ``decoder``'s weights; quanta are named after ``adapter``."""
        self._decoder = decoder
        self._adapter = adapter
        self._limits = limits

    @property
    def max_tokens(self) -> int:
        """Most tokens of a micro-batch to be measured."""
        return self._limits.max_tokens()

    def batches(self, samples: Iterable[TokenSample]) -> Iterator[list[TokenSample]]:
        """Yield samples, in order, in micro-batches as large as they may be by then."""
        batch: list[TokenSample] = []
        num_tokens = 0
        for sample in samples:
            num_tokens += len(sample.token_ids)
            if batch and num_tokens > self.max_tokens:
                yield batch
                batch, num_tokens = [], len(sample.token_ids)
            batch.append(sample)
        if batch:
            yield batch

    def stage(self, state: AdapterState) -> Generator[Quantum, None, Operand]:
        """Copy a version to where it can be measured, in the dtype that serves."""
        yield Quantum(QuantumKind.STAGE, state.layout.num_parameters, 0, self._adapter)
        table = self._decoder.weights.embedding
        bank = AdapterBank(state.layout, 1, table.dtype, table.device)
        bank.load(0, state)

        def operand(layer: int, target: Target) -> tuple[Tensor, Tensor]:
            return bank.factors(layer, target).dense(0)

        return operand

    def measure(
        self, batch: MicroBatch, operand: Operand
    ) -> Generator[Quantum, None, dict[str, Measured]]:
        """Return what is found about each sample, by id."""
        max_loss_rows = self._limits.max_loss_rows(QuantumKind.EVALUATE_LOSS)
        max_rows = self._limits.max_rows()
        run = Pass(self._decoder, batch, self._adapter, max_loss_rows, max_rows)
        yield from run.evaluate(operand)
        found = zip(
            batch.sample_ids,
            run.loss.means(),
            run.loss.num_tokens.tolist(),
            run.loss.num_wrong.tolist(),
            strict=True,
        )
        return {
            sample_id: Measured(loss, num_wrong == 0 if num_tokens <= MAX_ANSWER_TOKENS else None)
            for sample_id, loss, num_tokens, num_wrong in found
        }
