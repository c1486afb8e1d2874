from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from collm.model.rope import inverse_frequencies
from collm.model.spec import ModelSpec
from factories.checkpoints import tiny_config

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": 1e4},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, **_LLAMA3},
        {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 1.5,
            "truncate": False,
        },
    ],
    ids=lambda p: p["rope_type"],
)
def test_frequencies_equal_those_of_transformers(parameters: dict[str, Any]) -> None:
    config = tiny_config("llama", head_dim=64, rope_parameters=parameters)
    spec = ModelSpec.from_config(config.to_dict())
    reference = LlamaRotaryEmbedding(config)
    frequencies, attention_factor = inverse_frequencies(spec.rope, spec.head_dim)
    torch.testing.assert_close(frequencies, reference.inv_freq, rtol=1e-6, atol=0)
    assert attention_factor == pytest.approx(reference.attention_scaling)
