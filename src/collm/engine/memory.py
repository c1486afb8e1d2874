"""How much memory keys and values take."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from collm.engine.config import MemoryConfig
from collm.errors import ConfigError
from collm.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What the configuration comes to on a given model."""

    num_blocks: int
    block_size: int
    max_model_len: int


def plan_memory(
    config: MemoryConfig,
    spec: ModelSpec,
    dtype: torch.dtype,
    machine_bytes: int | None = None,
) -> MemoryPlan:
    """Return the number of blocks and the context limit that the configured memory allows.

    Args:
        config: What the operator asked for.
        spec: The model whose keys and values are kept.
        dtype: Of keys and values.
        machine_bytes: Memory that the device has; ``None`` is unknown.

    Raises:
        ConfigError: The memory holds no block, or not the context length asked for, or is more
            than there is.
    """
    if machine_bytes is not None and config.kv_cache_mib * 2**20 > machine_bytes:
        raise ConfigError(
            f"memory.kv_cache_mib is {config.kv_cache_mib}; "
            f"this machine has {machine_bytes >> 20} MiB in all"
        )
    token_bytes = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * dtype.itemsize
    num_blocks = config.kv_cache_mib * 2**20 // (config.block_size * token_bytes)
    capacity = num_blocks * config.block_size
    wanted = config.max_model_len or min(spec.max_position, capacity)
    if wanted < 1 or wanted > capacity:
        raise ConfigError(
            f"memory.kv_cache_mib = {config.kv_cache_mib} holds {capacity} tokens of this model; "
            f"that is less than a context of {max(wanted, 1)}"
        )
    if wanted > spec.max_position:
        raise ConfigError(
            f"memory.max_model_len is {wanted}; this model allows up to {spec.max_position}"
        )
    return MemoryPlan(num_blocks=num_blocks, block_size=config.block_size, max_model_len=wanted)


def allocate_caches(
    plan: MemoryPlan, spec: ModelSpec, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """Return one cache per layer, [num_blocks, block_size, 2, num_kv_heads, head_dim]."""
    shape = (plan.num_blocks, plan.block_size, 2, spec.num_kv_heads, spec.head_dim)
    if device.type != "cpu":
        return tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(spec.num_layers))
    # Zeros that the system hands out page by page: a block takes memory when it is first written.
    num_bytes = math.prod(shape) * dtype.itemsize
    pages = (np.zeros(num_bytes, dtype=np.uint8) for _ in range(spec.num_layers))
    return tuple(torch.from_numpy(page).view(dtype).view(shape) for page in pages)
