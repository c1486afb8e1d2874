"""``collm profile`` on a real replica of the tiny model."""

import json

import pytest

from collm.cli.profile_run import measure
from collm.config import CollmConfig
from collm.errors import ConfigError
from collm.model.config import ModelConfig
from collm.pacing.quanta import QuantumKind
from collm.sim.profile import parse_profile
from collm.training.config import JobConfig
from factories.checkpoints import tiny_checkpoint


@pytest.fixture
def config(tmp_path) -> CollmConfig:
    checkpoint = tiny_checkpoint(tmp_path, "llama")
    return CollmConfig(model=ModelConfig(source=str(checkpoint), dtype="float32"))


@pytest.fixture
def chats(tmp_path) -> str:
    path = tmp_path / "chats.jsonl"
    with path.open("w") as lines:
        for number in range(200):
            turns = [
                {"role": "user", "content": f"What is {number}?"},
                {"role": "assistant", "content": f"It is {number}."},
            ]
            lines.write(json.dumps({"messages": turns}) + "\n")
    return str(path)


def test_time_too_short_for_a_curve_is_told_before_the_load(config, chats, capsys) -> None:
    with pytest.raises(ConfigError, match=r"--seconds is 0\.01, .* give it more time"):
        measure(config, chats, 0.01, seed=0)
    assert "requests beside training" not in capsys.readouterr().err


def measure_long_enough(config, chats):
    """Give it more time where the machine has too much else to do."""
    for seconds in (6.0, 30.0):
        try:
            return measure(config, chats, seconds, seed=0)
        except ConfigError as error:
            if "give it more time" not in str(error):
                raise
    return measure(config, chats, 150.0, seed=0)


def test_measured_replica_has_a_profile_that_can_be_simulated(config, chats) -> None:
    found = measure_long_enough(config, chats)
    assert found.origin == "measured"
    assert parse_profile(found.to_json(), "here") == found
    assert found.training.num_layers == 2
    assert found.training.tokens_per_step == JobConfig(adapter="a", data="b").tokens_per_step
    for kind in (QuantumKind.FORWARD, QuantumKind.LOSS, QuantumKind.BACKWARD):
        assert len(found.quanta[kind].ratios) > 1
    assert found.step.constant_s + found.step.decode_s > 0.0
