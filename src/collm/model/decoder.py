"""The decoder as serving runs it: one step's tokens in, logits of the rows that sample out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from collm.model.layers import Project, Target, attention_half, mlp_half
from collm.model.rope import inverse_frequencies
from collm.model.spec import ModelSpec
from collm.model.weights import DecoderWeights, LayerWeights
from collm.ops.attention import AttentionPlan, paged_attention, write_kv_
from collm.ops.elementwise import rms_norm
from collm.ops.linear import FrozenLinear
from collm.ops.lora import AdapterRows, SlotFactors, adapted_linear
from collm.ops.rotary import RotaryTable


class AdapterFactors(Protocol):
    """Where the factors of every loaded adapter version lie."""

    def factors(self, layer: int, target: Target) -> SlotFactors:
        """Return those of one fused linear."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """One step's tokens, flattened: no padding, no batch dimension."""

    token_ids: Tensor
    """[num_tokens]"""
    positions: Tensor
    """[num_tokens]"""
    attention: Mapping[int | None, AttentionPlan]
    """One plan for each sliding-window width that the model uses; ``None`` is full attention."""
    adapters: AdapterRows
    """Which rows use which adapter."""
    sample_rows: Tensor
    """Rows [num_samples] whose next token is wanted."""


class Decoder:
    """A decoder-only transformer over frozen weights."""

    def __init__(self, spec: ModelSpec, weights: DecoderWeights, max_model_len: int) -> None:
        """Serve ``weights`` for sequences of up to ``max_model_len`` tokens."""
        self.spec = spec
        self.weights = weights
        inv_freq, scaling = inverse_frequencies(spec.rope, spec.head_dim)
        dtype, device = weights.embedding.dtype, weights.embedding.device
        self.rotary = RotaryTable(inv_freq, scaling, max_model_len, dtype, device)

    @torch.inference_mode()
    def forward(
        self, batch: StepBatch, caches: Sequence[Tensor], adapters: AdapterFactors
    ) -> Tensor:
        """Write the step's keys and values to ``caches``; return its logits.

        Returns:
            Logits [num_samples, vocab_size] of the batch's ``sample_rows``.
        """
        x = self.weights.embedding.index_select(0, batch.token_ids)
        rotation = self.rotary.rows(batch.positions)
        for index, layer in enumerate(self.weights.layers):
            project = _serving_projection(layer, index, batch.adapters, adapters)
            cache = caches[index]
            plan = batch.attention[self.spec.sliding_windows[index]]

            def attend(
                q: Tensor, kv: Tensor, cache: Tensor = cache, plan: AttentionPlan = plan
            ) -> Tensor:
                write_kv_(cache, kv, plan.cache_rows)
                return paged_attention(q, kv, cache, plan)

            x = attention_half(x, layer, self.spec, rotation, project, attend)
            x = mlp_half(x, layer, self.spec, project)
        return self.logits(x.index_select(0, batch.sample_rows))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [num_rows, vocab_size], in the weights' dtype.

        Args:
            hidden: Residual stream after the last layer [num_rows, hidden_size].
        """
        normed = rms_norm(hidden, self.weights.final_norm, self.spec.rms_norm_eps)
        return self.weights.head.forward(normed)


def _serving_projection(
    layer: LayerWeights, index: int, rows: AdapterRows, adapters: AdapterFactors
) -> Project:
    """Return the layer's linears with the step's adapters added, unmerged."""

    def project(target: Target, x: Tensor) -> Tensor:
        linear: FrozenLinear = getattr(layer, target)
        return adapted_linear(linear, x, rows, adapters.factors(index, target))

    return project
