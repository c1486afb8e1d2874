"""The copy of an adapter that training writes; inference never reads it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from collm.lora.layout import Factors, LoraLayout
from collm.lora.state import AdapterState
from collm.model.layers import Target
from collm.ops.linear import FrozenLinear
from collm.ops.lora import Adapted, write_diagonal
from collm.ops.threads import one_thread


@dataclass(frozen=True, slots=True)
class TrainingFactors:
    """What training's forward and backward need of one fused linear."""

    a: Tensor
    """[num_parts * rank, in_features], compute dtype."""
    b: Tensor
    """Bᵀ, block diagonal [num_parts * rank, out_features], compute dtype."""
    grad: Factors
    """Views of the flat gradient, float32."""
    added_square: Tensor
    """Sum of squares of what ``accumulate_`` added, of all fused linears together []."""
    scale: float
    """What B is multiplied by when it is applied."""

    def on(self, linear: FrozenLinear) -> Adapted:
        """Return the linear with these factors."""
        return Adapted(linear, self.a, self.b, self.grad.target.part_sizes)

    def accumulate_(self, update_a: Tensor, update_b: Tensor) -> None:
        """Add a call's gradients, as ``Adapted.backward`` returns them."""
        self.grad.a.add_(update_a)
        self.grad.b.add_(update_b, alpha=self.scale)
        self._note(update_a, 1.0)
        self._note(update_b, self.scale)

    def _note(self, update: Tensor, scale: float) -> None:
        """Add up squares while the update is at hand: the sum of many hides each one's norm."""
        norm = torch.linalg.vector_norm(update, dtype=torch.float32)
        self.added_square.addcmul_(norm, norm, value=scale * scale)


class Shadow:
    """Float32 master parameters, their gradient, and compute copies in the serving dtype.

    Parameters are kept with the scale alpha / rank taken out of B, which is how alpha acts under
    Adam: it makes B learn alpha / rank times as fast as A. Evaluation reads the compute copies and
    so sees the values that serving would see.
    """

    def __init__(
        self, state: AdapterState, alpha: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Start from a copy of ``state``, in which the scale is folded into B."""
        self.layout: LoraLayout = state.layout
        self.parameters = torch.empty_like(state.flat, device=device)
        self.gradient = torch.zeros_like(self.parameters)
        self.added_square = torch.zeros((), device=device)
        """Squared norm of what the micro-batch under way added to the gradient, from its start."""
        self._scale = alpha / state.layout.rank
        self._views = self.layout.views(self.parameters)
        self._factors: list[dict[Target, TrainingFactors]] = [
            {} for _ in range(self.layout.num_layers)
        ]
        for view, grad in zip(self._views, self.layout.views(self.gradient), strict=True):
            a = torch.empty_like(view.a, dtype=dtype)
            b = torch.zeros(a.shape[0], view.target.out_features, dtype=dtype, device=device)
            factors = TrainingFactors(a, b, grad, self.added_square, self._scale)
            self._factors[view.layer][view.target.name] = factors
        self.reset(state)

    def factors(self, layer: int, target: Target) -> TrainingFactors:
        """Return the compute copies and gradient views of one fused linear."""
        return self._factors[layer][target]

    def operand(self, layer: int, target: Target) -> tuple[Tensor, Tensor]:
        """Return A [num_parts * rank, in_features] and Bᵀ [num_parts * rank, out_features]."""
        factors = self._factors[layer][target]
        return factors.a, factors.b

    @one_thread()
    def refresh(self, layers: range) -> None:
        """Bring the compute copies of ``layers`` up to date after their parameters changed."""
        num_targets = len(self.layout.targets)
        for view in self._views[layers.start * num_targets : layers.stop * num_targets]:
            factors = self._factors[view.layer][view.target.name]
            factors.a.copy_(view.a)
            # Scaled before it is rounded to the compute dtype, as serving has it.
            write_diagonal(view.b.T * self._scale, view.target.part_sizes, factors.b)

    @one_thread()
    def reset(self, state: AdapterState) -> None:
        """Take over ``state``'s values; its layout must be the shadow's."""
        assert state.layout == self.layout
        parameters = state.flat.clone()
        self._scale_b_(parameters, 1.0 / self._scale)
        self.gradient.zero_()
        self.load_parameters(parameters)

    def load_parameters(self, parameters: Tensor) -> None:
        """Take over a copy of another shadow's ``parameters``, of the same layout and alpha."""
        self.parameters.copy_(parameters)
        self.refresh(range(self.layout.num_layers))

    @one_thread()
    def state(self) -> AdapterState:
        """Return a copy of the parameters as they are now, scale folded in."""
        flat = self.parameters.cpu().clone()
        self._scale_b_(flat, self._scale)
        return AdapterState(self.layout, flat)

    def _scale_b_(self, flat: Tensor, factor: float) -> None:
        for view in self.layout.views(flat):
            view.b.mul_(factor)
