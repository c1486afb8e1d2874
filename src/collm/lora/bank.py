"""Device memory for adapter versions: a fixed number of slots, with room for one rank."""

from collections.abc import Callable

import torch
from torch import Tensor

from collm.lora.layout import FusedTarget, LoraLayout
from collm.lora.state import AdapterState
from collm.model.layers import Target
from collm.ops.large_pages import LargePages
from collm.ops.lora import SlotFactors, reserve_factors
from collm.ops.threads import one_thread


class AdapterBank:
    """Slots that hold adapter versions in the serving dtype, of up to the bank's rank."""

    def __init__(
        self, layout: LoraLayout, num_slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Reserve ``num_slots`` slots for adapters of up to ``layout.rank``."""
        self.layout = layout
        self.num_slots = num_slots
        pages = LargePages()

        def zeros(shape: tuple[int, ...]) -> Tensor:
            if device.type == "cpu":
                return pages.zeros(shape, dtype)
            return torch.zeros(shape, dtype=dtype, device=device)

        self._banks: list[dict[Target, SlotFactors]] = [
            {t.name: _reserve(t, num_slots, layout.rank, zeros) for t in layout.targets}
            for _ in range(layout.num_layers)
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes held by all slots."""
        banks = [bank for layer in self._banks for bank in layer.values()]
        return sum(t.numel() * t.element_size() for bank in banks for t in (bank.a, bank.b))

    def factors(self, layer: int, target: Target) -> SlotFactors:
        """Return the factors of all slots."""
        return self._banks[layer][target]

    @one_thread()
    def load(self, slot: int, state: AdapterState) -> None:
        """Copy ``state``, of at most the bank's rank, into ``slot``."""
        rank = state.layout.rank
        assert rank <= self.layout.rank, (rank, self.layout.rank)
        for factors in state.layout.views(state.flat):
            bank = self._banks[factors.layer][factors.target.name]
            a = factors.a.view(-1, rank, factors.target.in_features)
            bank.load(slot, a, factors.b.T)


def _reserve(
    target: FusedTarget, num_slots: int, rank: int, zeros: Callable[[tuple[int, ...]], Tensor]
) -> SlotFactors:
    return reserve_factors(num_slots, rank, target.in_features, target.part_sizes, zeros)
