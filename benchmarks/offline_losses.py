"""Losses of adapters on questions that nobody learned from, measured apart from any replica."""

from collections.abc import Generator, Mapping, Sequence
from typing import TypeVar

from collm.chats import Sample
from collm.lora.state import AdapterState
from collm.pacing.quanta import Quantum, QuantumKind
from collm.replica.job_builder import conversation_of
from collm.training.measuring import Limits, Meter, mean_of
from collm.training.microbatch import pack
from collm.training.samples import TokenSample, prepare_samples
from federated_sides import Model

T = TypeVar("T")
_MAX_TOKENS = 1024


class LossMeter:
    """Measures adapters as the quality gate does: the mean over samples of nats per token.

    Args:
        model: The base model.
        questions: In parts, each with its name.
    """

    def __init__(self, model: Model, questions: Mapping[str, Sequence[Sample]]) -> None:
        self._meter = Meter(model.decoder, "offline", Limits(_Unbounded(), 1.0, _MAX_TOKENS))
        self._parts = {name: _prepared(model, samples) for name, samples in questions.items()}

    def losses(self, state: AdapterState) -> dict[str, float]:
        """Return an adapter's loss on each part."""
        operand = _drain(self._meter.stage(state))
        losses = {}
        for name, samples in self._parts.items():
            found = [
                one
                for batch in self._meter.batches(samples)
                for one in _drain(self._meter.measure(pack(batch), operand)).values()
            ]
            losses[name] = mean_of(found).loss
        return losses


class _Unbounded:
    """Quanta as long as they like."""

    def max_size(self, kind: QuantumKind, limit_s: float) -> int:
        return 1_000_000


def _prepared(model: Model, samples: Sequence[Sample]) -> Sequence[TokenSample]:
    conversations = [conversation_of(sample) for sample in samples]
    prepared = prepare_samples(conversations, model.tokenizer, max_tokens=_MAX_TOKENS).samples
    if len(prepared) != len(samples):
        raise SystemExit("a question is too long to be measured")
    return prepared


def _drain(program: Generator[Quantum, None, T]) -> T:
    """Run a program to its end and return its value."""
    while True:
        try:
            next(program)
        except StopIteration as end:
            value: T = end.value
            return value
