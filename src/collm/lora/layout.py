"""Where each factor of an adapter lies in one flat vector of parameters.

One vector makes the optimizer, a snapshot, a checkpoint and an exchange a handful of calls whatever
the number of layers. For every layer and fused linear it holds

    A  [num_parts * rank, in_features]    the parts' A factors, stacked
    B  [out_features, rank]               the parts' B factors, stacked by output rows

where the parts are the linears fused into one (query, key and value; gate and up).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from collm.model.layers import Target
from collm.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Part:
    """One of the linears that a fused linear is made of."""

    module: str
    """Name below ``model.layers.N``, as PEFT files have it."""
    out_features: int


@dataclass(frozen=True, slots=True)
class FusedTarget:
    """A fused linear that adapters attach to."""

    name: Target
    in_features: int
    parts: tuple[Part, ...]

    @property
    def out_features(self) -> int:
        """Output width of the fused linear."""
        return sum(part.out_features for part in self.parts)

    @property
    def part_sizes(self) -> tuple[int, ...]:
        """Output width of each part."""
        return tuple(part.out_features for part in self.parts)

    def num_parameters(self, rank: int) -> int:
        """Return the number of adapter parameters at ``rank``."""
        return rank * (len(self.parts) * self.in_features + self.out_features)


@dataclass(frozen=True, slots=True)
class Factors:
    """Views of one fused linear's factors in a flat vector."""

    layer: int
    target: FusedTarget
    a: Tensor
    """[num_parts * rank, in_features]"""
    b: Tensor
    """[out_features, rank]"""

    def parts(self) -> Iterator[tuple[Part, Tensor, Tensor]]:
        """Yield each part with its A [rank, in_features] and B [out_features, rank], as views."""
        rank, row = self.b.shape[1], 0
        for index, part in enumerate(self.target.parts):
            a = self.a[index * rank : (index + 1) * rank]
            yield part, a, self.b[row : row + part.out_features]
            row += part.out_features


@dataclass(frozen=True, slots=True)
class LoraLayout:
    """The shape of every adapter of one rank on one model."""

    targets: tuple[FusedTarget, ...]
    num_layers: int
    rank: int

    @property
    def num_parameters(self) -> int:
        """Length of the flat vector."""
        return self.num_layers * sum(t.num_parameters(self.rank) for t in self.targets)

    def views(self, flat: Tensor) -> tuple[Factors, ...]:
        """Return the factors of every layer and target as views of ``flat`` [num_parameters]."""
        assert flat.shape == (self.num_parameters,), (flat.shape, self.num_parameters)
        factors, offset = [], 0
        for layer in range(self.num_layers):
            for target in self.targets:
                size_a = len(target.parts) * self.rank * target.in_features
                size_b = target.out_features * self.rank
                middle, end = offset + size_a, offset + size_a + size_b
                a = flat[offset:middle].view(-1, target.in_features)
                factors.append(Factors(layer, target, a, flat[middle:end].view(-1, self.rank)))
                offset = end
        return tuple(factors)


def lora_layout(spec: ModelSpec, rank: int) -> LoraLayout:
    """Return the layout of adapters on every linear of attention and MLP."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_out, kv_out = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    qkv = (
        Part("self_attn.q_proj", q_out),
        Part("self_attn.k_proj", kv_out),
        Part("self_attn.v_proj", kv_out),
    )
    gate_up = (Part("mlp.gate_proj", inner), Part("mlp.up_proj", inner))
    return LoraLayout(
        targets=(
            FusedTarget("qkv", hidden, qkv),
            FusedTarget("o", q_out, (Part("self_attn.o_proj", hidden),)),
            FusedTarget("gate_up", hidden, gate_up),
            FusedTarget("down", inner, (Part("mlp.down_proj", hidden),)),
        ),
        num_layers=spec.num_layers,
        rank=rank,
    )
