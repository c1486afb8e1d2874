"""Rotary frequencies for every supported scaling."""

import math

import torch
from torch import Tensor

from collm.model.rope_spec import LinearScaling, Llama3Scaling, RopeSpec, YarnScaling


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> tuple[Tensor, float]:
    """Return the angle per position of each pair of dimensions, and a factor on cos and sin.

    Returns:
        Frequencies [head_dim / 2], float32, in radians per position; attention factor.

    Source: RoPE, arXiv 2104.09864, section 3.2.2; linear: arXiv 2306.15595; yarn: arXiv
    2309.00071, section 3; llama3: Llama 3.1's reference code, ``apply_scaling``.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / rope.theta**exponents
    match rope.scaling:
        case LinearScaling(factor):
            return plain / factor, 1.0
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling), 1.0
        case YarnScaling() as scaling:
            return _yarn(plain, scaling, rope.theta), _yarn_attention_factor(scaling)
        case None:
            return plain, 1.0


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position * plain / (2 * math.pi)
    # 0 where a dimension turns at most `low` times in the original context (divide by factor), 1
    # where it turns `high` times or more (keep).
    kept_share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (kept_share + (1.0 - kept_share) / scaling.factor)


def _yarn(plain: Tensor, scaling: YarnScaling, theta: float) -> Tensor:
    num_pairs = len(plain)

    def dimension_turning(num_turns: float) -> float:
        """Invert turns = original / (2 pi theta^(i / num_pairs)) for the pair index i."""
        ratio = scaling.original_max_position / (num_turns * 2 * math.pi)
        return num_pairs * math.log(ratio) / math.log(theta)

    start, end = dimension_turning(scaling.beta_fast), dimension_turning(scaling.beta_slow)
    if scaling.truncate:
        start, end = math.floor(start), math.ceil(end)
    start, end = max(start, 0), min(end, 2 * num_pairs - 1)
    width = end - start or 0.001
    divided_share = ((torch.arange(num_pairs, dtype=torch.float32) - start) / width).clamp(0.0, 1.0)
    return plain * (1.0 - divided_share) + plain / scaling.factor * divided_share


def _yarn_attention_factor(scaling: YarnScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1.0 else 1.0
