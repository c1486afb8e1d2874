"""Linear algebra on low-rank updates ΔW = B A without forming ΔW."""

from collections.abc import Sequence

import torch
from torch import Tensor

from collm.lora.layout import LoraLayout
from collm.lora.state import AdapterState, initialize_a_

_NEGLIGIBLE = 1e-7
"""Singular values under this share of ‖b‖ ‖a‖ are rounding errors of float32 factors."""


def truncated_product(a: Tensor, b: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return factors (A, B) of the best approximation of ``b a`` with the given rank.

    QR of both factors leaves a small core whose SVD is exact; singular values are split evenly.

    Args:
        a: [inner, in_features].
        b: [out_features, inner].
        rank: Rank of the result.

    Returns:
        A [rank, in_features] and B [out_features, rank], zero beyond the rank of ``b a``.

    Source: Eckart and Young, 1936.
    """
    q_b, r_b = torch.linalg.qr(b.double())
    q_a, r_a = torch.linalg.qr(a.double().T)
    u, s, vh = torch.linalg.svd(r_b @ r_a.T, full_matrices=False)
    noise = _NEGLIGIBLE * torch.linalg.norm(r_b) * torch.linalg.norm(r_a)
    kept = min(rank, int((s > noise).sum()))
    root = s[:kept].sqrt()
    new_a = a.new_zeros(rank, a.shape[1])
    new_b = b.new_zeros(b.shape[0], rank)
    new_a[:kept] = (root[:, None] * (vh[:kept] @ q_a.T)).to(a.dtype)
    new_b[:, :kept] = (q_b @ u[:, :kept] * root).to(b.dtype)
    return new_a, new_b


Terms = Sequence[tuple[float, AdapterState]]
"""A weighted sum of updates, as (weight, adapter); ranks may differ."""


class Combination:
    """Σ weight · ΔW of some terms, truncated to a layout's rank, one linear at a time.

    Dimensions that the sum leaves unused start as those of a new adapter do, A random and B zero:
    with both zero no gradient would ever reach them.
    """

    def __init__(self, terms: Terms, layout: LoraLayout) -> None:
        self._weights = [weight for weight, _ in terms]
        self._generator = torch.Generator().manual_seed(0)
        self._state = AdapterState(layout, torch.zeros(layout.num_parameters))
        views = [layout.views(self._state.flat)]
        views += [state.layout.views(state.flat) for _, state in terms]
        self._linears = [
            linear
            for fused in zip(*views, strict=True)
            for linear in zip(*(factors.parts() for factors in fused), strict=True)
        ]

    @property
    def sizes(self) -> list[int]:
        """Return the parameters of each linear of the result, all layers' in order."""
        return [a.numel() + b.numel() for (_, a, b), *_ in self._linears]

    def add_linear(self, index: int) -> None:
        """Compute the factors of a linear; milliseconds for a small model's at rank 16."""
        (_, out_a, out_b), *pieces = self._linears[index]
        a = torch.cat([piece_a for _, piece_a, _ in pieces])
        weighted = zip(self._weights, pieces, strict=True)
        b = torch.cat([weight * piece_b for weight, (_, _, piece_b) in weighted], 1)
        new_a, new_b = truncated_product(a, b, out_a.shape[0])
        unused = ~new_b.any(dim=0)
        new_a[unused] = initialize_a_(new_a[unused], self._generator)
        out_a.copy_(new_a)
        out_b.copy_(new_b)

    def state(self) -> AdapterState:
        """Return the sum, once every linear was added."""
        return self._state


def combine(terms: Terms, layout: LoraLayout) -> AdapterState:
    """Return Σ weight · ΔW of ``terms``, truncated to ``layout``'s rank."""
    combination = Combination(terms, layout)
    for index in range(len(combination.sizes)):
        combination.add_linear(index)
    return combination.state()


def rebase_terms(shadow: AdapterState, old: AdapterState | None, new: AdapterState) -> Terms:
    """Return ΔW_new + (ΔW_shadow − ΔW_old): what ``shadow`` learned since ``old``, upon ``new``.

    Args:
        shadow: The training copy.
        old: The version that it started from; ``None`` stands for ΔW = 0.
        new: The version that it shall continue from.
    """
    gained = ((1.0, new), (1.0, shadow))
    return gained if old is None else (*gained, (-1.0, old))
