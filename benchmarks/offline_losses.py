"""Losses of adapters on questions that nobody learned from, measured apart from any replica."""

from collections.abc import Mapping, Sequence

from collm.chats import Sample
from collm.lora.state import AdapterState
from collm.replica.job_builder import conversation_of
from collm.training.measuring import Limits, Meter, mean_of
from collm.training.microbatch import pack
from collm.training.samples import TokenSample, prepare_samples
from federated_sides import Model
from unhurried import Unbounded, drain

_MAX_TOKENS = 1024


class LossMeter:
    """Measures adapters as the quality gate does: the mean over samples of nats per token.

    Args:
        model: The base model.
        questions: In parts, each with its name.
    """

    def __init__(self, model: Model, questions: Mapping[str, Sequence[Sample]]) -> None:
        self._meter = Meter(model.decoder, "offline", Limits(Unbounded(), 1.0, _MAX_TOKENS))
        self._parts = {name: _prepared(model, samples) for name, samples in questions.items()}

    def losses(self, state: AdapterState) -> dict[str, float]:
        """Return an adapter's loss on each part."""
        operand = drain(self._meter.stage(state))
        losses = {}
        for name, samples in self._parts.items():
            found = [
                one
                for batch in self._meter.batches(samples)
                for one in drain(self._meter.measure(pack(batch), operand)).values()
            ]
            losses[name] = mean_of(found).loss
        return losses


def _prepared(model: Model, samples: Sequence[Sample]) -> Sequence[TokenSample]:
    conversations = [conversation_of(sample) for sample in samples]
    prepared = prepare_samples(conversations, model.tokenizer, max_tokens=_MAX_TOKENS).samples
    if len(prepared) != len(samples):
        raise SystemExit("a question is too long to be measured")
    return prepared
