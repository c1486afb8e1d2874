"""The base weights in the form they are served and trained through: fused, packed, read-only."""

from dataclasses import dataclass

import torch
from torch import Tensor

from collm.model.checkpoint import Checkpoint
from collm.model.spec import ModelSpec
from collm.ops.large_pages import LargePages
from collm.ops.linear import DenseLinear, FrozenLinear, freeze_linear
from collm.ops.quantized import Quantization


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer."""

    attention_norm: Tensor
    qkv: FrozenLinear
    q_norm: Tensor | None
    """Per-head query norm [head_dim]; ``None`` where the family has none."""
    k_norm: Tensor | None
    o: FrozenLinear
    mlp_norm: Tensor
    gate_up: FrozenLinear
    down: FrozenLinear

    def linears(self) -> tuple[FrozenLinear, ...]:
        """Return the layer's fused linears."""
        return (self.qkv, self.o, self.gate_up, self.down)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """All weights of a decoder."""

    embedding: Tensor
    """[vocab_size, hidden_size]; a view of the mapped file if that has the serving dtype."""
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: FrozenLinear
    """Vocabulary projection. A packed head of tied weights is a second copy of the table, held
    because a packed projection reads it twice as fast; the table itself stays on disk pages."""
    head_gradient: FrozenLinear
    """The same projection for training's input gradient: the plain table needs no unpacking. A
    quantized head is its own, since the gradient must be that of what was computed."""

    @property
    def num_bytes(self) -> int:
        """Bytes of memory held by the linears, the embedding table not counted."""
        linears = [linear for layer in self.layers for linear in layer.linears()]
        return sum(linear.num_bytes for linear in [*linears, self.head])


def load_weights(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    quantization: Quantization | None = None,
) -> DecoderWeights:
    """Read every tensor of ``checkpoint`` once, fuse what is computed together, and freeze it.

    With ``quantization`` every linear of the layers is rounded to it, and the vocabulary projection
    to 8 bits: 4 would cost more there than in all layers together. The table that tokens are looked
    up in stays as it is: of it, only the rows in use are in memory.

    The tables stay views of the file that ``checkpoint`` maps. All else is read through a mapping
    of its own, which ends here and takes the pages that were only copied from out of the process.
    """
    tables = _Reader(checkpoint, dtype, device, None)
    embedding = tables.tensor("model.embed_tokens.weight")
    table = embedding if spec.tie_embeddings else tables.tensor("lm_head.weight")
    reader = _Reader(Checkpoint(checkpoint.folder), dtype, device, quantization)
    head = freeze_linear(table, None, "int8" if quantization else None, reader.pages)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_load_layer(reader, spec, index) for index in range(spec.num_layers)),
        final_norm=reader.vector("model.norm.weight"),
        head=head,
        head_gradient=head if quantization else DenseLinear(table),
    )


class _Reader:
    """Brings tensors of a checkpoint to the serving dtype and device."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        quantization: Quantization | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self._quantization: Quantization | None = quantization
        self.pages = LargePages()

    def tensor(self, name: str) -> Tensor:
        return self._checkpoint.tensor(name).to(device=self._device, dtype=self._dtype)

    def vector(self, name: str) -> Tensor:
        """Copy a small tensor, so that it does not keep the whole file mapped."""
        return self.tensor(name).clone()

    def linear(self, prefix: str, *names: str, bias: bool = False) -> FrozenLinear:
        """Fuse the linears ``names`` that share an input into one, in that order."""
        weights = [self.tensor(f"{prefix}.{name}.weight") for name in names]
        biases = [self.tensor(f"{prefix}.{name}.bias") for name in names] if bias else []
        fused_bias = torch.cat(biases) if bias else None
        return freeze_linear(torch.cat(weights), fused_bias, self._quantization, self.pages)


def _load_layer(reader: _Reader, spec: ModelSpec, index: int) -> LayerWeights:
    prefix = f"model.layers.{index}"
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    return LayerWeights(
        attention_norm=reader.vector(f"{prefix}.input_layernorm.weight"),
        qkv=reader.linear(attention, "q_proj", "k_proj", "v_proj", bias=spec.qkv_bias),
        q_norm=reader.vector(f"{attention}.q_norm.weight") if spec.qk_norm else None,
        k_norm=reader.vector(f"{attention}.k_norm.weight") if spec.qk_norm else None,
        o=reader.linear(attention, "o_proj", bias=spec.o_bias),
        mlp_norm=reader.vector(f"{prefix}.post_attention_layernorm.weight"),
        gate_up=reader.linear(mlp, "gate_proj", "up_proj", bias=spec.mlp_bias),
        down=reader.linear(mlp, "down_proj", bias=spec.mlp_bias),
    )
