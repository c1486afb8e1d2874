"""How configured memory turns into blocks and a context limit."""

import pytest
import torch

from collm.engine.memory import MemoryConfig, allocate_caches, plan_memory
from collm.errors import ConfigError
from collm.model.spec import ModelSpec
from factories.checkpoints import tiny_config

# Per token and layer: a key and a value of 2 heads x 16; 2 layers: 128 numbers.
SPEC = ModelSpec.from_config(tiny_config("llama").to_dict())


@pytest.mark.parametrize(("dtype", "num_blocks"), [(torch.float32, 128), (torch.bfloat16, 256)])
def test_blocks_fill_the_configured_memory(dtype, num_blocks):
    plan = plan_memory(MemoryConfig(kv_cache_mib=1), SPEC, dtype)
    assert (plan.num_blocks, plan.block_size) == (num_blocks, 16)
    caches = allocate_caches(plan, SPEC, dtype, torch.device("cpu"))
    assert len(caches) == SPEC.num_layers
    assert sum(cache.numel() * cache.element_size() for cache in caches) == 2**20


def test_context_is_what_model_and_blocks_allow():
    assert plan_memory(MemoryConfig(kv_cache_mib=1), SPEC, torch.float32).max_model_len == 512
    wide = ModelSpec.from_config(tiny_config("llama", max_position_embeddings=9_999).to_dict())
    assert plan_memory(MemoryConfig(kv_cache_mib=1), wide, torch.float32).max_model_len == 2_048
    asked = MemoryConfig(kv_cache_mib=1, max_model_len=100)
    assert plan_memory(asked, SPEC, torch.float32).max_model_len == 100


def test_context_that_does_not_fit_is_refused_with_the_numbers():
    wide = ModelSpec.from_config(tiny_config("llama", max_position_embeddings=9_999).to_dict())
    with pytest.raises(ConfigError, match="kv_cache_mib = 1 holds 2048 tokens.*context of 3000"):
        plan_memory(MemoryConfig(kv_cache_mib=1, max_model_len=3_000), wide, torch.float32)
    with pytest.raises(ConfigError, match="max_model_len is 513; this model allows up to 512"):
        plan_memory(MemoryConfig(kv_cache_mib=1, max_model_len=513), SPEC, torch.float32)
    with pytest.raises(ConfigError, match="holds 0 tokens"):
        plan_memory(MemoryConfig(kv_cache_mib=1, block_size=4_096), SPEC, torch.float32)


def test_more_memory_than_the_machine_has_is_refused_with_both_numbers():
    config = MemoryConfig(kv_cache_mib=101)
    with pytest.raises(ConfigError, match="kv_cache_mib is 101; this machine has 100 MiB"):
        plan_memory(config, SPEC, torch.float32, 100 * 2**20)
    assert plan_memory(config, SPEC, torch.float32, 101 * 2**20).num_blocks == 101 * 128


@pytest.mark.parametrize(
    ("field", "value"), [("kv_cache_mib", 0), ("block_size", 0), ("max_model_len", 0)]
)
def test_values_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"memory.{field} is {value}"):
        MemoryConfig(**{field: value})
