"""A checkpoint costs the step loop its snapshot; the disk, however slow, costs it nothing."""

import threading
from types import SimpleNamespace

import pytest
import torch

from collm.clock import ManualClock
from collm.lora.bank import AdapterBank
from collm.lora.layout import lora_layout
from collm.lora.store import AdapterStore
from collm.metrics.exporter import ReplicaMetrics
from collm.pacing.config import Objectives
from collm.pacing.credit import Credit
from collm.pacing.quanta import QuantumKind
from collm.replica.archive import Archive
from collm.replica.deciders import DecisionLimits, Surroundings, build_deciders
from collm.replica.inbox import AddJob, Inbox
from collm.replica.library import Library
from collm.replica.writer import Writer
from collm.store.checkpoints import CheckpointStore
from collm.store.data_folder import DataFolder
from collm.training.trainer import Trainer
from factories.training import job_config, make_job, make_watches, tiny_decoder

INTERVAL_S = 5.0
QUANTUM_S = 0.01
NUM_STEPS = 12


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return tiny_decoder(tmp_path_factory.mktemp("job"))


class Rig:
    """What a step loop does for training, over a real data folder and its writing thread."""

    def __init__(self, decoder, data, interval_s):
        self.clock, self.quanta = ManualClock(), []
        self.writer = Writer(lambda: None, 1000.0)
        library = Library(data.versions, decoder.spec, "tiny", "digest")
        self.archive = Archive(data, library, Inbox(), self.writer)
        self.trainer = Trainer((), self.clock)
        layout = lora_layout(decoder.spec, 4)
        bank = AdapterBank(layout, 3, torch.float32, torch.device("cpu"))
        self.learner = build_deciders(
            self.trainer,
            make_watches(decoder),
            Surroundings(
                adapters=AdapterStore(bank, "tiny", lambda version: None),
                archive=self.archive,
                metrics=ReplicaMetrics("tiny", Objectives()),
                board=SimpleNamespace(refresh=lambda: None),
                clock=self.clock,
            ),
            DecisionLimits(
                min_promotion_interval_s=0.0, slot_wait_s=10.0, checkpoint_interval_s=interval_s
            ),
            Credit(),
        ).learner
        record = data.jobs.add(adapter="a", settings={}, is_continuous=True)
        job = make_job(decoder, job_config())
        self.learner.receive(AddJob(job=job, record=record, base=None))

    def train(self):
        while self.learner.snapshot()["a"]["step"] < NUM_STEPS:
            quantum = self.trainer.peek()
            self.clock.advance(QUANTUM_S)
            self.quanta.append(quantum)
            self.learner.handle(self.trainer.run(quantum))
            self.learner.tend()


def quanta_of_training(decoder, folder, interval_s):
    with DataFolder(folder, max_versions=5, now_s=lambda: 0.0) as data:
        rig = Rig(decoder, data, interval_s)
        rig.train()
        return rig.quanta


def test_checkpoints_add_a_snapshot_quantum_each_to_training_and_nothing_else(decoder, tmp_path):
    without = quanta_of_training(decoder, tmp_path / "without", 1e9)
    often = quanta_of_training(decoder, tmp_path / "often", 20 * QUANTUM_S)
    snapshots = [quantum for quantum in often if quantum.kind is QuantumKind.SNAPSHOT]
    assert len(snapshots) > 2
    assert [quantum for quantum in often if quantum.kind is not QuantumKind.SNAPSHOT] == without
    assert {quantum.index for quantum in snapshots} == {0}


def test_disk_that_hangs_does_not_stop_training_and_checkpoints_are_written_aside(
    decoder, tmp_path, monkeypatch
):
    writers, save = [], CheckpointStore.save

    def recorded(*args):
        writers.append(threading.current_thread().name)
        save(*args)

    monkeypatch.setattr(CheckpointStore, "save", recorded)
    hangs = threading.Event()
    with DataFolder(tmp_path, max_versions=5, now_s=lambda: 0.0) as data:
        rig = Rig(decoder, data, 20 * QUANTUM_S)
        rig.archive.write(lambda _: hangs.wait(600))
        rig.writer.start()
        rig.train()
        assert writers == []
        assert not (tmp_path / "training").exists()
        hangs.set()
        rig.writer.close()
        num_taken = sum(quantum.kind is QuantumKind.SNAPSHOT for quantum in rig.quanta)
        assert writers == ["collm-writer"] * num_taken
        assert int(data.checkpoints.load("a").meta["num_steps"]) > 0
