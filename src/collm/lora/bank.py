"""Device memory for adapter versions: a fixed number of slots of one rank."""

import torch
from torch import Tensor

from collm.lora.layout import Factors, FusedTarget, LoraLayout
from collm.lora.state import AdapterState
from collm.model.layers import Target


def block_rows(factors: Factors, out: Tensor) -> None:
    """Write Bᵀ of a fused linear to ``out`` [num_parts * rank, out_features], block diagonal.

    With A's parts stacked, one product with this matrix applies all parts at once: row block ``p``
    reaches only the output columns of part ``p``. ``out`` must be zero outside the blocks.
    """
    rank, column = factors.b.shape[1], 0
    stride = out.shape[0] // len(factors.target.parts)
    for index, (part, _, b) in enumerate(factors.parts()):
        columns = slice(column, column + part.out_features)
        out[index * stride : index * stride + rank, columns].copy_(b.T)
        column += part.out_features


class AdapterBank:
    """Slots that hold adapter versions in the serving dtype, padded to the bank's rank."""

    def __init__(
        self, layout: LoraLayout, num_slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Reserve ``num_slots`` slots for adapters of up to ``layout.rank``."""
        self.layout = layout
        self.num_slots = num_slots
        self._banks: list[dict[Target, tuple[Tensor, Tensor]]] = [
            {t.name: _reserve(t, num_slots, layout.rank, dtype, device) for t in layout.targets}
            for _ in range(layout.num_layers)
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes held by all slots."""
        tensors = [t for layer in self._banks for pair in layer.values() for t in pair]
        return sum(t.numel() * t.element_size() for t in tensors)

    def factors(self, layer: int, target: Target) -> tuple[Tensor, Tensor]:
        """Return the factors of all slots.

        Returns:
            A [num_slots, num_parts * rank, in_features], Bᵀ [num_slots, num_parts * rank,
            out_features].
        """
        return self._banks[layer][target]

    def load(self, slot: int, state: AdapterState) -> None:
        """Copy ``state``, of at most the bank's rank, into ``slot`` and zero the rest of it."""
        rank = state.layout.rank
        assert rank <= self.layout.rank, (rank, self.layout.rank)
        for factors in state.layout.views(state.flat):
            bank_a, bank_b = self._banks[factors.layer][factors.target.name]
            bank_a[slot].zero_()
            bank_b[slot].zero_()
            padded = bank_a[slot].view(len(factors.target.parts), self.layout.rank, -1)
            padded[:, :rank].copy_(factors.a.view(-1, rank, factors.target.in_features))
            block_rows(factors, bank_b[slot])


def _reserve(
    target: FusedTarget, num_slots: int, rank: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    rows = len(target.parts) * rank
    return (
        torch.zeros(num_slots, rows, target.in_features, dtype=dtype, device=device),
        torch.zeros(num_slots, rows, target.out_features, dtype=dtype, device=device),
    )
