"""The process of one replica, as far as it comes without a model."""

import socket

import pytest

from collm.cli.replica_process import run_replica
from collm.config import CollmConfig
from collm.errors import ConfigError, ModelError
from collm.model.config import ModelConfig
from collm.replica.config import ReplicaConfig
from collm.server.config import ServerConfig
from collm.store.data_folder import DataFolder
from collm.training.config import JobConfig, TrainingConfig


def test_taken_port_is_told_before_the_model_is_looked_for(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = CollmConfig(
            model=ModelConfig(source=str(tmp_path / "no-model")), server=ServerConfig(port=port)
        )
        with pytest.raises(ConfigError, match=f":{port}: "):
            run_replica(config)


def without_model(tmp_path, *jobs):
    return CollmConfig(
        model=ModelConfig(source=str(tmp_path / "no-model")),
        server=ServerConfig(port=0),
        replica=ReplicaConfig(data_dir=str(tmp_path / "data")),
        training=TrainingConfig(jobs=jobs, general_data=None),
    )


def test_data_folder_in_use_is_told_before_the_model_is_looked_for(tmp_path):
    config = without_model(tmp_path)
    with (
        DataFolder(tmp_path / "data", max_versions=2, now_s=lambda: 0.0),
        pytest.raises(ConfigError, match="in use by another process"),
    ):
        run_replica(config)
    with pytest.raises(ModelError):  # and is let go when the start fails later
        run_replica(config)
    with pytest.raises(ModelError):
        run_replica(config)


@pytest.mark.parametrize("name", ["a@1", "../up", "-x"])
def test_impossible_adapter_name_is_told_before_the_model_is_looked_for(tmp_path, name):
    config = without_model(tmp_path, JobConfig(adapter=name, data="snips"))
    with pytest.raises(ConfigError, match=f"training.jobs: adapter name '{name}' is not allowed"):
        run_replica(config)
