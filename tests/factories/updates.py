"""Members' updates as factors and files, and the dense algebra that they are held to."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from collm.federated.aggregate_plan import AggregatePlan, StrategyName, UpdateFile
from collm.federated.factors import Factors, file_digest, write_factors
from collm.federated.strategies import MemberUpdate

MODULES = {
    "base_model.model.model.layers.0.self_attn.q_proj": (12, 10),
    "base_model.model.model.layers.0.mlp.down_proj": (9, 12),
}
"""(in_features, out_features) by module."""


def random_factors(
    rank: int, seed: int, modules: Mapping[str, tuple[int, int]] = MODULES
) -> Factors:
    generator = torch.Generator().manual_seed(seed)
    return {
        module: (
            torch.randn(rank, num_in, generator=generator),
            torch.randn(num_out, rank, generator=generator),
        )
        for module, (num_in, num_out) in modules.items()
    }


def update(member: str, factors: Factors, weight: float = 1.0, **others: object) -> MemberUpdate:
    return MemberUpdate(member=member, factors=factors, weight=weight, **others)


def dense(factors: Factors) -> dict[str, Tensor]:
    """Return ΔW by module in float64."""
    return {module: b.double() @ a.double() for module, (a, b) in factors.items()}


def dense_sum(terms: Sequence[tuple[float, Factors]]) -> dict[str, Tensor]:
    """Return Σ c ΔW by module in float64."""
    return {
        module: sum(weight * dense(factors)[module] for weight, factors in terms)
        for module in terms[0][1]
    }


def best_of_rank(matrix: Tensor, rank: int) -> Tensor:
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return u[:, :rank] * s[:rank] @ vh[:rank]


def norm(matrices: Mapping[str, Tensor]) -> float:
    return float(torch.cat([matrix.flatten() for matrix in matrices.values()]).norm())


def update_file(folder: Path, member: str, factors: Factors, **others: object) -> UpdateFile:
    """Write a member's update; return its entry in a plan."""
    path = folder / f"{member}.safetensors"
    write_factors(path, factors, base_digest="b" * 64)
    return UpdateFile(
        **{
            "member": member,
            "path": path,
            "digest": file_digest(path),
            "num_examples": 100,
            **others,
        }
    )


def raw_file(folder: Path, member: str, tensors: dict[str, Tensor]) -> UpdateFile:
    """Write any tensors as a member's update, whether or not they make sense."""
    path = folder / f"{member}.safetensors"
    save_file(tensors, path)
    return UpdateFile(member=member, path=path, digest=file_digest(path), num_examples=100)


def aggregate_plan(folder: Path, updates: Sequence[UpdateFile], **others: object) -> AggregatePlan:
    return AggregatePlan(
        **{
            "strategy": StrategyName.SVD,
            "rank": 8,
            "min_updates": 1,
            "base_model": "tiny",
            "base": None,
            "updates": tuple(updates),
            "output": folder / "output",
            **others,
        }
    )
