"""What a process says while it works on its start."""

import time

import pytest

from collm.cli.replica_process import run_replica
from collm.cli.start_signs import StartSigns
from collm.cluster.hosts import STARTING
from collm.config import CollmConfig
from collm.model.config import ModelConfig
from collm.replica.config import ReplicaConfig
from collm.server.config import ServerConfig
from collm.training.config import TrainingConfig


class Start:
    """A start whose processor time a test sets."""

    def __init__(self):
        self.computed_s = 0.0
        self.said = []
        self.signs = StartSigns(lambda: self.computed_s, self.said.append)

    def looks_alive(self):
        """Return whether a look has it say something."""
        num_before = len(self.said)
        self.signs.look()
        return len(self.said) > num_before


def test_start_says_so_as_long_as_it_computes():
    start = Start()
    for seconds, is_working in ((1.0, True), (0.001, False), (0.0, False), (0.05, True)):
        start.computed_s += seconds
        assert start.looks_alive() == is_working
    assert set(start.said) == {STARTING}


def test_start_that_waits_for_what_has_limits_of_its_own_says_so_as_well():
    start = Start()
    with start.signs.waiting():
        assert start.looks_alive()
        assert start.looks_alive()
    assert not start.looks_alive()


@pytest.mark.parametrize("name", ["r0", None])
def test_replica_of_a_cluster_says_so_while_its_model_is_fetched(
    tmp_path, monkeypatch, capsys, name
):
    class FetchedError(Exception):
        pass

    said = []

    def fetch(*_, **__):
        deadline_s = time.monotonic() + (10.0 if name else 0.1)
        while not said and time.monotonic() < deadline_s:
            said.extend(capsys.readouterr().out.splitlines())
        raise FetchedError

    monkeypatch.setattr("collm.cli.start_signs._EVERY_S", 0.001)
    monkeypatch.setattr("collm.cli.replica_process.find_checkpoint", fetch)
    config = CollmConfig(
        model=ModelConfig(source="m"),
        server=ServerConfig(port=0),
        replica=ReplicaConfig(data_dir=str(tmp_path / "data")),
        training=TrainingConfig(general_data=None),
    )
    with pytest.raises(FetchedError):
        run_replica(config, name=name, control_secret=name)
    assert set(said) == ({STARTING} if name else set())
