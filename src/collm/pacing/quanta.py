"""The order of quanta: how training is cut into pieces that each end soon."""

from dataclasses import dataclass
from enum import StrEnum


class QuantumKind(StrEnum):
    """What a quantum does; quanta of one kind share one cost model."""

    PREPARE = "prepare"
    """Pack a micro-batch and look up its embeddings; sized in tokens."""
    FORWARD = "forward"
    """One sublayer's forward for training; sized in tokens."""
    LOSS = "loss"
    """Loss and its gradient for some positions; sized in positions."""
    BACKWARD = "backward"
    """One sublayer's backward; sized in tokens."""
    OPTIMIZER = "optimizer"
    """The optimizer's update of part of the parameters; sized in parameters."""
    EVALUATE_FORWARD = "evaluate_forward"
    """One sublayer's forward without gradients; sized in tokens."""
    EVALUATE_LOSS = "evaluate_loss"
    """Loss alone for some positions; sized in positions."""
    STAGE = "stage"
    """Copy part of an adapter version to its device slot; sized in parameters."""
    REBASE = "rebase"
    """Carry one layer of a shadow over to a new version; sized in parameters."""
    SNAPSHOT = "snapshot"
    """Copy part of the training state for a checkpoint; sized in parameters."""


COMPARING = frozenset({QuantumKind.EVALUATE_FORWARD, QuantumKind.EVALUATE_LOSS, QuantumKind.STAGE})
"""Kinds that serve to judge a candidate."""
LEARNING = frozenset(
    {
        QuantumKind.PREPARE,
        QuantumKind.FORWARD,
        QuantumKind.LOSS,
        QuantumKind.BACKWARD,
        QuantumKind.OPTIMIZER,
    }
)
"""Kinds that change a shadow; a little of ``PREPARE`` is for judging."""
OWED = (QuantumKind.SNAPSHOT, QuantumKind.REBASE)  # few, and asked for at every quantum
"""Kinds that bring what was learned to disk: the second is what a snapshot must wait for."""

CUT_EVERY = 4
"""A single micro-batch says nothing of how far gradients lie apart: of the steps that would have no
more, one in so many is made of halves. All of them would cost a few percent of the speed."""


@dataclass(frozen=True, slots=True)
class Quantum:
    """The smallest piece of training that runs without looking up."""

    kind: QuantumKind
    size: int
    """What its time scales with: tokens, positions or parameters, see ``QuantumKind``."""
    index: int = 0
    """Which sublayer, chunk or piece of its kind."""
    adapter: str = ""


def cut(total: int, max_piece: int) -> tuple[int, ...]:
    """Cut ``total`` into the fewest pieces of at most ``max_piece``, near-equal, larger ones first.

    Nothing is cut into no pieces.

    Raises:
        ValueError: ``total`` is negative or ``max_piece`` is below 1.
    """
    if total < 0 or max_piece < 1:
        raise ValueError(f"cannot cut {total} into pieces of at most {max_piece}")
    num_pieces = -(-total // max_piece)
    if num_pieces == 0:
        return ()
    size, num_larger = divmod(total, num_pieces)
    return (size + 1,) * num_larger + (size,) * (num_pieces - num_larger)


def micro_batch_quanta(
    num_sublayers: int, num_tokens: int, loss_chunks: tuple[int, ...], adapter: str
) -> tuple[Quantum, ...]:
    """List the quanta of one micro-batch in the order in which they run.

    A sublayer is the attention or the MLP half of a layer: halves stay short at micro-batches that
    are large enough to be efficient. The optimizer's quanta follow only at an accumulation
    boundary, see ``optimizer_quanta``.

    Args:
        num_sublayers: Twice the number of layers.
        num_tokens: Packed tokens of the micro-batch.
        loss_chunks: Supervised positions of each loss quantum.
        adapter: Name of the adapter that learns.
    """
    kind = QuantumKind
    return (
        Quantum(kind.PREPARE, num_tokens, 0, adapter),
        *(Quantum(kind.FORWARD, num_tokens, i, adapter) for i in range(num_sublayers)),
        *(Quantum(kind.LOSS, size, i, adapter) for i, size in enumerate(loss_chunks)),
        *(Quantum(kind.BACKWARD, num_tokens, i, adapter) for i in reversed(range(num_sublayers))),
    )


def evaluation_quanta(
    num_sublayers: int, num_tokens: int, loss_chunks: tuple[int, ...], adapter: str
) -> tuple[Quantum, ...]:
    """List the quanta of one held-out micro-batch; arguments as in ``micro_batch_quanta``."""
    kind = QuantumKind
    return (
        Quantum(kind.PREPARE, num_tokens, 0, adapter),
        *(Quantum(kind.EVALUATE_FORWARD, num_tokens, i, adapter) for i in range(num_sublayers)),
        *(Quantum(kind.EVALUATE_LOSS, size, i, adapter) for i, size in enumerate(loss_chunks)),
    )


def optimizer_quanta(
    num_layers: int, layer_parameters: int, max_parameters: int, adapter: str
) -> tuple[Quantum, ...]:
    """List the quanta of one optimizer step in the order in which they run.

    Each updates whole layers, those after the layers of the quanta before it: as many as stay
    within ``max_parameters``, but at least one.

    Args:
        num_layers: Layers of the model.
        layer_parameters: Adapter parameters of one layer.
        max_parameters: Most parameters of a quantum of several layers.
        adapter: Name of the adapter that learns.
    """
    counts = cut(num_layers, max(1, max_parameters // layer_parameters))
    return tuple(
        Quantum(QuantumKind.OPTIMIZER, count * layer_parameters, i, adapter)
        for i, count in enumerate(counts)
    )
