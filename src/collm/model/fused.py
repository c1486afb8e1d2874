"""The decoder's layers as one call of the compiled kernels, where these compute all of it.

A decode step of a small model is hundreds of short operations; called one by one, they take longer
to reach the kernels than to compute. ``Decoder.forward`` is the same, operation by operation.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from collm.model.decoder import AdapterFactors, Decoder, StepBatch
from collm.model.layers import Target
from collm.model.weights import LayerWeights
from collm.ops.attention import AttentionPlan, can_attend_natively
from collm.ops.linear import NativeLinear
from collm.ops.native.layers import (
    LayerFields,
    LinearFields,
    PlanFields,
    SpanFields,
    StepFields,
    linear_fields,
    run_layers,
)
from collm.ops.native.library import address

Forward = Callable[[StepBatch], Tensor]
"""Writes a step's keys and values to the caches; returns its logits, as ``Decoder.forward``."""

_LINEARS: tuple[Target, ...] = ("qkv", "o", "gate_up", "down")


def make_forward(decoder: Decoder, caches: Sequence[Tensor], adapters: AdapterFactors) -> Forward:
    """Return the fastest way to compute steps of ``decoder`` here.

    Args:
        decoder: The decoder that serves.
        caches: One per layer, for as long as the result is used.
        adapters: Whose factors stay where they are, for as long as the result is used.
    """
    if can_fuse(decoder, caches):
        return _FusedDecoder(decoder, caches, adapters).forward
    return partial(decoder.forward, caches=caches, adapters=adapters)


def can_fuse(decoder: Decoder, caches: Sequence[Tensor]) -> bool:
    """Return whether the kernels compute every part of the layers."""
    linears = [getattr(layer, name) for layer in decoder.weights.layers for name in _LINEARS]
    return (
        decoder.spec.activation == "silu"
        and can_attend_natively(caches[0])
        and all(isinstance(linear, NativeLinear) for linear in linears)
    )


class _FusedDecoder:
    """One decoder with its caches and adapters, as the kernels read them."""

    def __init__(
        self, decoder: Decoder, caches: Sequence[Tensor], adapters: AdapterFactors
    ) -> None:
        self._decoder, self._caches, self._adapters = decoder, caches, adapters
        spec = decoder.spec
        self._windows = sorted(set(spec.sliding_windows), key=lambda window: window or 0)
        weights = decoder.weights.layers
        self._layers = (LayerFields * len(weights))(
            *(self._layer_fields(index, layer) for index, layer in enumerate(weights))
        )

    @torch.inference_mode()
    def forward(self, batch: StepBatch) -> Tensor:
        """See ``Forward``."""
        decoder, spec = self._decoder, self._decoder.spec
        x = decoder.weights.embedding.index_select(0, batch.token_ids)
        cos, sin = decoder.rotary.rows(batch.positions)
        plans = [batch.attention[window] for window in self._windows]
        fields = [_plan_fields(plan) for plan in plans]
        slots = batch.adapters.slots if batch.adapters.segments else None
        step = StepFields(
            rows=len(x),
            hidden=spec.hidden_size,
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_size=self._caches[0].shape[1],
            num_layers=spec.num_layers,
            x=address(x, torch.bfloat16, len(x), spec.hidden_size),
            cos=address(cos, torch.bfloat16, len(x), 1, spec.head_dim),
            sin=address(sin, torch.bfloat16, len(x), 1, spec.head_dim),
            cache_rows=address(plans[0].cache_rows, torch.int64, len(x)),
            slots=address(slots, torch.int32, len(x)),
            plans=(PlanFields * len(fields))(*fields),
            eps=spec.rms_norm_eps,
        )
        run_layers(self._layers, step)
        return decoder.logits(x.index_select(0, batch.sample_rows))

    def _layer_fields(self, index: int, layer: LayerWeights) -> LayerFields:
        spec = self._decoder.spec
        return LayerFields(
            attention_norm=address(layer.attention_norm, torch.bfloat16, spec.hidden_size),
            mlp_norm=address(layer.mlp_norm, torch.bfloat16, spec.hidden_size),
            q_norm=address(layer.q_norm, torch.bfloat16, spec.head_dim),
            k_norm=address(layer.k_norm, torch.bfloat16, spec.head_dim),
            cache=address(self._caches[index], torch.bfloat16, *self._caches[0].shape),
            plan=self._windows.index(spec.sliding_windows[index]),
            **{name: self._linear_fields(index, layer, name) for name in _LINEARS},
        )

    def _linear_fields(self, index: int, layer: LayerWeights, name: Target) -> LinearFields:
        linear = getattr(layer, name)
        assert isinstance(linear, NativeLinear)
        factors = self._adapters.factors(index, name)
        assert factors.is_blocked
        return linear_fields(
            linear.packed, linear.bias, factors.a, factors.b, factors.ranks, factors.part_sizes
        )


def _plan_fields(plan: AttentionPlan) -> PlanFields:
    spans = [
        SpanFields(
            span.start,
            span.stop,
            span.num_context,
            address(span.blocks, torch.int64, len(span.blocks)),
        )
        for span in plan.spans
    ]
    return PlanFields(
        window=plan.window or 0,
        num_decode=plan.num_decode,
        max_blocks=plan.decode_blocks.shape[1] if plan.num_decode else 0,
        num_spans=len(spans),
        decode_blocks=address(plan.decode_blocks, torch.int64, *plan.decode_blocks.shape),
        decode_lengths=address(plan.decode_lengths, torch.int64, plan.num_decode),
        spans=(SpanFields * len(spans))(*spans),
    )
