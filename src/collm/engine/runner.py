"""Carries out step plans on the device."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from collm.engine.batch import BatchBuilder, row_order
from collm.engine.plan import SampledToken, ScheduledSequence, StepOutput, StepPlan
from collm.model.decoder import AdapterFactors, Decoder
from collm.model.fused import make_forward
from collm.ops.sampling import SamplingRow, sample, token_logprobs


@dataclass(frozen=True, slots=True)
class ReadyStep:
    """A launched step whose result is there already, as on a CPU."""

    output: StepOutput

    def result(self) -> StepOutput:
        """Return the sampled tokens."""
        return self.output


class ModelRunner:
    """Runs steps of one decoder over one set of KV caches."""

    def __init__(
        self,
        decoder: Decoder,
        caches: Sequence[Tensor],
        adapters: AdapterFactors,
        eos_token_ids: frozenset[int],
    ) -> None:
        """Compute on ``decoder``, keeping keys and values in ``caches`` (one per layer)."""
        self._forward = make_forward(decoder, caches, adapters)
        self._eos_token_ids = eos_token_ids
        self._builder = BatchBuilder(caches[0], decoder.spec.sliding_windows)

    def launch(self, plan: StepPlan) -> ReadyStep:
        """Compute the plan's tokens; the handle gives one sampled token per sampling item."""
        if plan.is_empty:
            return ReadyStep(StepOutput())
        items = sorted(plan.items, key=row_order)
        logits = self._forward(self._builder.build(items))
        sampling = [item for item in items if item.samples]
        sampled = dict(zip(map(id, sampling), self._sample(logits, sampling), strict=True))
        return ReadyStep(
            StepOutput(tuple(sampled[id(item)] for item in plan.items if item.samples))
        )

    def _sample(self, logits: Tensor, items: Sequence[ScheduledSequence]) -> list[SampledToken]:
        if not items:
            return []
        rows = [self._sampling_row(item) for item in items]
        tokens = sample(logits, rows)
        logprobs = token_logprobs(logits, tokens, [row.params.logprobs for row in rows])
        return list(map(SampledToken, tokens, logprobs))

    def _sampling_row(self, item: ScheduledSequence) -> SamplingRow:
        sequence = item.sequence
        params = sequence.request.sampling
        seed = params.seed if params.seed is not None else sequence.request.request_id
        return SamplingRow(
            params=params,
            token_ids=sequence.token_ids,
            num_prompt_tokens=sequence.num_prompt_tokens,
            seed=f"{seed}:{sequence.choice}",
            stop_token_ids=self._eos_token_ids.union(params.stop_token_ids),
        )
