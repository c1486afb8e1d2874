"""An adapter's parameters off the device: immutable, of a known layout, scale folded into B."""

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from collm.errors import AdapterError
from collm.lora.layout import LoraLayout


@dataclass(frozen=True, slots=True)
class AdapterState:
    """One adapter's factors. Nobody writes ``flat`` after construction."""

    layout: LoraLayout
    flat: Tensor
    """[layout.num_parameters], float32 on the CPU."""

    def digest(self) -> str:
        """Return the SHA-256 of the rank and the factors' bytes."""
        digest = hashlib.sha256(f"rank={self.layout.rank};".encode())
        digest.update(self.flat.contiguous().numpy().data)
        return digest.hexdigest()

    def check_finite(self) -> None:
        """Raise ``AdapterError`` naming the first module with a NaN or an infinity."""
        if math.isfinite(float(self.flat.sum())):
            return
        for factors in self.layout.views(self.flat):
            for part, a, b in factors.parts():
                if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
                    where = f"layers.{factors.layer}.{part.module}"
                    raise AdapterError(f"adapter has non-finite values in {where}")


def initial_state(layout: LoraLayout, seed: int) -> AdapterState:
    """Return an adapter that changes nothing yet: A Kaiming-uniform by ``seed``, B zero.

    Source: LoRA, arXiv 2106.09685, section 4.1; the bound of A is that of ``peft``.
    """
    generator = torch.Generator().manual_seed(seed)
    flat = torch.zeros(layout.num_parameters)
    for factors in layout.views(flat):
        initialize_a_(factors.a, generator)
    return AdapterState(layout, flat)


def initialize_a_(a: Tensor, generator: torch.Generator) -> Tensor:
    """Fill ``a`` [num_rows, in_features] with the values that a new A starts from; return it."""
    bound = 1.0 / math.sqrt(a.shape[1])
    return a.uniform_(-bound, bound, generator=generator)
