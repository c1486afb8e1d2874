"""Linear algebra on low-rank updates ΔW = B A without forming ΔW."""

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


def combine(terms: list[tuple[float, AdapterState]], layout: LoraLayout) -> AdapterState:
    """Return Σ weight · ΔW of ``terms``, truncated to ``layout``'s rank; ranks may differ.

    Dimensions that the sum leaves unused start as those of a new adapter do, A random and B zero:
    with both zero no gradient would ever reach them.
    """
    generator = torch.Generator().manual_seed(0)
    flat = torch.zeros(layout.num_parameters)
    views = [state.layout.views(state.flat) for _, state in terms]
    weights = [weight for weight, _ in terms]
    for factors in zip(layout.views(flat), *views, strict=True):
        target, sources = factors[0], factors[1:]
        for parts in zip(target.parts(), *(source.parts() for source in sources), strict=True):
            (_, out_a, out_b), pieces = parts[0], parts[1:]
            a = torch.cat([piece_a for _, piece_a, _ in pieces])
            b = torch.cat(
                [w * piece_b for w, (_, _, piece_b) in zip(weights, pieces, strict=True)], 1
            )
            new_a, new_b = truncated_product(a, b, layout.rank)
            unused = ~new_b.any(dim=0)
            new_a[unused] = initialize_a_(new_a[unused], generator)
            out_a.copy_(new_a)
            out_b.copy_(new_b)
    return AdapterState(layout, flat)


def rebase(shadow: AdapterState, old: AdapterState | None, new: AdapterState) -> AdapterState:
    """Carry what ``shadow`` learned since ``old`` over to ``new``: ΔW_new + (ΔW_shadow − ΔW_old).

    Args:
        shadow: The training copy.
        old: The version that it started from; ``None`` stands for ΔW = 0.
        new: The version that it shall continue from.
    """
    terms = [(1.0, new), (1.0, shadow)]
    if old is not None:
        terms.append((-1.0, old))
    return combine(terms, shadow.layout)
