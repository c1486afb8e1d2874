"""Settings on their way from the configuration to a replica."""

import torch

from collm.cli.replica_settings import replica_settings
from collm.config import CollmConfig
from collm.model.config import ModelConfig

ROOMS = ("replica", "memory", "scheduler", "lora", "pacing", "training")


def test_every_setting_of_a_replica_reaches_it():
    model = ModelConfig(source="smollm2-135m-instruct", dtype="float32", quantization="int8")
    config = CollmConfig(model=model)
    settings = replica_settings(config, "banking")
    assert settings.name == "banking"
    assert settings.base_model == model.served_name
    assert (settings.dtype, settings.quantization) == (torch.float32, "int8")
    assert all(getattr(settings, room) is getattr(config, room) for room in ROOMS)
