"""The copy of an adapter that training writes; inference never reads it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from collm.lora.bank import block_rows
from collm.lora.layout import Factors, LoraLayout
from collm.lora.state import AdapterState
from collm.model.layers import Target


@dataclass(frozen=True, slots=True)
class TrainingFactors:
    """What training's forward and backward need of one fused linear."""

    a: Tensor
    """[num_parts * rank, in_features], compute dtype."""
    b: Tensor
    """Bᵀ, block diagonal [num_parts * rank, out_features], compute dtype."""
    grad: Factors
    """Views of the flat gradient, float32."""

    def accumulate_(self, x: Tensor, t: Tensor, dt: Tensor, dy: Tensor) -> None:
        """Add this call's gradients: dA = dtᵀ x, and dB = dyᵀ t within each part's block."""
        rank, column = self.grad.b.shape[1], 0
        self.grad.a.add_(dt.T @ x)
        for index, (part, _, grad_b) in enumerate(self.grad.parts()):
            columns = slice(column, column + part.out_features)
            grad_b.add_(dy[:, columns].T @ t[:, index * rank : (index + 1) * rank])
            column += part.out_features


class Shadow:
    """Float32 master parameters, their gradient, and compute copies in the serving dtype.

    Evaluation through the compute copies therefore sees the values that serving would see.
    """

    def __init__(self, state: AdapterState, dtype: torch.dtype, device: torch.device) -> None:
        """Start from a copy of ``state``."""
        self.layout: LoraLayout = state.layout
        self.parameters = state.flat.to(device=device, copy=True)
        self.gradient = torch.zeros_like(self.parameters)
        self._views = self.layout.views(self.parameters)
        self._factors: list[dict[Target, TrainingFactors]] = [
            {} for _ in range(self.layout.num_layers)
        ]
        for view, grad in zip(self._views, self.layout.views(self.gradient), strict=True):
            a = torch.empty_like(view.a, dtype=dtype)
            b = torch.zeros(a.shape[0], view.target.out_features, dtype=dtype, device=device)
            self._factors[view.layer][view.target.name] = TrainingFactors(a, b, grad)
        self.refresh()

    def factors(self, layer: int, target: Target) -> TrainingFactors:
        """Return the compute copies and gradient views of one fused linear."""
        return self._factors[layer][target]

    def refresh(self) -> None:
        """Bring the compute copies up to date after the parameters changed."""
        for view in self._views:
            factors = self._factors[view.layer][view.target.name]
            factors.a.copy_(view.a)
            block_rows(view, factors.b)

    def reset(self, state: AdapterState) -> None:
        """Take over ``state``'s values; its rank must be the shadow's."""
        assert state.layout == self.layout
        self.parameters.copy_(state.flat)
        self.gradient.zero_()
        self.refresh()

    def state(self) -> AdapterState:
        """Return a copy of the parameters as they are now."""
        return AdapterState(self.layout, self.parameters.detach().cpu().clone())
