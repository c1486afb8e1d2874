"""An adapter's parameters off the device: immutable, of a known layout, scale folded into B."""

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from collm.errors import AdapterError
from collm.lora.layout import LoraLayout
from collm.ops.threads import one_thread

_MAX_FACTOR = 1e4
_MAX_NORM = 1e4
"""Largest |B||A| of a module; trained adapters stay below 100 or so. A normalized input x has a
norm of about sqrt(hidden size), 100 at most. Through gate, up and down the residual stream may then
reach |B||A| cubed times the norm of x squared, 1e16, whose square, summed over the hidden size by
the next normalization, is the largest number of all: 1e36, within the 3e38 of float32 and
bfloat16."""


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

    @one_thread()
    def check_finite(self) -> None:
        """Raise ``AdapterError`` naming the first module with a NaN or an infinity."""
        if math.isfinite(float(self.flat.sum())):
            return
        for factors in self.layout.views(self.flat):
            for part, a, b in factors.parts():
                if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
                    where = f"layers.{factors.layer}.{part.module}"
                    raise AdapterError(f"adapter has non-finite values in {where}")

    @one_thread()
    def check_bounded(self) -> None:
        """Raise ``AdapterError`` naming the first module whose output could overflow."""
        for factors in self.layout.views(self.flat):
            for part, a, b in factors.parts():
                largest = max(float(a.abs().max()), float(b.abs().max()))
                norm = float(vector_norm(a, dtype=torch.float64))
                norm *= float(vector_norm(b, dtype=torch.float64))
                if not (largest <= _MAX_FACTOR and norm <= _MAX_NORM):
                    raise AdapterError(
                        f"adapter is too large in layers.{factors.layer}.{part.module}, its output "
                        f"could overflow: the largest value of its factors is {largest:.3g}, "
                        f"allowed are {_MAX_FACTOR:g}; the norms of A and B, scale included, "
                        f"multiply to {norm:.3g}, allowed are {_MAX_NORM:g}"
                    )


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
