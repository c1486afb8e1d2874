"""``collm profile`` on a real replica of the tiny model."""

import json

from collm.cli.profile_run import measure
from collm.config import CollmConfig
from collm.model.config import ModelConfig
from collm.pacing.quanta import QuantumKind
from collm.sim.profile import parse_profile
from collm.training.config import JobConfig
from factories.checkpoints import tiny_checkpoint

SECONDS = 6.0


def test_measured_replica_has_a_profile_that_can_be_simulated(tmp_path) -> None:
    checkpoint = tiny_checkpoint(tmp_path, "llama")
    chats = tmp_path / "chats.jsonl"
    with chats.open("w") as lines:
        for number in range(200):
            turns = [
                {"role": "user", "content": f"What is {number}?"},
                {"role": "assistant", "content": f"It is {number}."},
            ]
            lines.write(json.dumps({"messages": turns}) + "\n")
    config = CollmConfig(model=ModelConfig(source=str(checkpoint), dtype="float32"))
    found = measure(config, str(chats), SECONDS, seed=0)
    assert found.origin == "measured"
    assert parse_profile(found.to_json(), "here") == found
    assert found.training.num_layers == 2
    assert found.training.tokens_per_step == JobConfig(adapter="a", data="b").tokens_per_step
    for kind in (QuantumKind.FORWARD, QuantumKind.LOSS, QuantumKind.BACKWARD):
        assert len(found.quanta[kind].ratios) > 1
    assert found.step.constant_s + found.step.decode_s > 0.0
