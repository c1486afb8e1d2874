"""The halves of a decoder layer in training, over all rows of a micro-batch or piece by piece.

A sample that is too long for one quantum is cut by rows. The MLP takes each row by itself. In
attention a piece sees the keys and values of the pieces before it::

    piece 0   rows 0 … a     attend to  [ 0 … a ]
    piece 1   rows a … b     attend to  [ 0 … a | a … b ]

Backward runs from the last piece to the first, and each leaves to those before it the gradient of
their keys and values: what comes out is the gradient of the sample in one piece.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from collm.model.layers import Attend, Project, Rotation, attention_half, mlp_half
from collm.model.spec import ModelSpec
from collm.model.weights import LayerWeights


class Half(Protocol):
    """Half a layer; its pieces go forward in order and backward in reverse."""

    def forward(self, x: Tensor, piece: int) -> Tensor:
        """Return the residual stream of a piece [num_rows, hidden_size] after this half."""
        ...

    def backward(self, x: Tensor, y: Tensor, piece: int, dy: Tensor) -> Tensor:
        """Return the gradient of ``x``, from which ``forward`` made ``y``."""
        ...


class MlpHalf:
    """The gated MLP, which takes every row by itself."""

    def __init__(self, layer: LayerWeights, spec: ModelSpec, project: Project) -> None:
        self._forward: Callable[[Tensor], Tensor] = lambda x: mlp_half(x, layer, spec, project)

    def forward(self, x: Tensor, piece: int) -> Tensor:
        """See ``Half``."""
        return self._forward(x)

    def backward(self, x: Tensor, y: Tensor, piece: int, dy: Tensor) -> Tensor:
        """See ``Half``."""
        (dx,) = torch.autograd.grad(y, x, dy)
        return dx


class AttentionHalf:
    """Attention, with the keys and values of earlier pieces.

    Args:
        layer: Its weights.
        spec: Its architecture.
        rotations: Of each piece's rows.
        project: Applies a linear.
        attends: Of each piece: takes queries and keys of its rows and of all before them.
    """

    def __init__(
        self,
        layer: LayerWeights,
        spec: ModelSpec,
        rotations: Sequence[Rotation],
        project: Project,
        attends: Sequence[Attend],
    ) -> None:
        self._layer = layer
        self._spec = spec
        self._rotations = rotations
        self._project = project
        self._attends = attends
        self._known: list[Tensor] = []
        """Keys and values of each piece that went forward, out of its graph."""
        self._made: dict[int, Tensor] = {}
        """The same in the graphs of pieces that are still to go backward."""
        self._gradients: dict[int, Tensor] = {}
        """What later pieces have left so far."""

    def forward(self, x: Tensor, piece: int) -> Tensor:
        """See ``Half``."""
        is_whole = len(self._attends) == 1

        def attend(q: Tensor, kv: Tensor) -> Tensor:
            return self._attends[0](q, kv) if is_whole else self._attend(q, kv, piece)

        rotation = self._rotations[piece]
        return attention_half(x, self._layer, self._spec, rotation, self._project, attend)

    def backward(self, x: Tensor, y: Tensor, piece: int, dy: Tensor) -> Tensor:
        """See ``Half``."""
        outputs, gradients = [y], [dy]
        if piece in self._gradients:
            outputs.append(self._made[piece])
            gradients.append(self._gradients.pop(piece))
        self._made.pop(piece, None)
        dx, *earlier = torch.autograd.grad(outputs, [x, *self._known[:piece]], gradients)
        for index, gradient in enumerate(earlier):
            before = self._gradients.get(index)
            self._gradients[index] = gradient if before is None else before + gradient
        del self._known[piece:]
        return dx

    def _attend(self, q: Tensor, kv: Tensor, piece: int) -> Tensor:
        if kv.requires_grad:
            self._made[piece] = kv
        if piece == len(self._known):  # not when it is computed again for backward
            self._known.append(kv.detach().requires_grad_())
        keys = torch.cat((*self._known[:piece], kv))
        num_earlier = keys.shape[0] - kv.shape[0]
        # Attention wants as many queries as keys, and leaves those that it is not to answer alone.
        queries = torch.cat((q.new_zeros(num_earlier, *q.shape[1:]), q))
        return self._attends[piece](queries, keys)[num_earlier:]
