"""The process of one replica, as far as it comes without a model."""

import socket

import pytest

from collm.cli.replica_process import run_replica
from collm.config import CollmConfig
from collm.errors import ConfigError
from collm.model.config import ModelConfig
from collm.server.config import ServerConfig


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
