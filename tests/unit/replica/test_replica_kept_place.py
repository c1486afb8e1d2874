"""How far training is outlives what it had learned, when another version takes its place."""

import errno

import pytest
import torch

from collm.replica.archive import CHECKPOINT_FILE, Archive
from collm.replica.inbox import Inbox, PromotionFailed, Published
from collm.replica.library import Library
from collm.store.data_folder import DataFolder
from collm.training.events import TrainingSnapshot
from factories.archives import HeldWorker
from factories.checkpoints import tiny_checkpoint
from factories.deciders import SPEC, state
from factories.replicas import learning, open_tiny_replica
from factories.waiting import wait_until


@pytest.mark.parametrize("is_local", [True, False])
def test_version_from_outside_leaves_the_place_of_training_and_nothing_it_had_learned(
    tmp_path, is_local
):
    with DataFolder(tmp_path, max_versions=5, now_s=lambda: 0.0) as data:
        library = Library(data.versions, SPEC, "tiny", "digest")
        archive = Archive(data, library, Inbox(), HeldWorker())
        meta, tensors = {"num_steps": "4"}, {"parameters": torch.ones(2)}
        snapshot = TrainingSnapshot(adapter="a", tensors=tensors, meta=meta)
        archive.save_checkpoint(snapshot, "ftjob-1")
        published = library.publish("a", state(1), {})
        if is_local:
            message = Published.local(published, state(1), {})
        else:
            message = Published.foreign(published, state(1), "asked for", None)
        archive.record_promotion(message)
        checkpoint = data.checkpoints.load("a")
        assert (checkpoint.meta["num_steps"], checkpoint.meta["job_id"]) == ("4", "ftjob-1")
        assert (checkpoint.folder / CHECKPOINT_FILE).exists() == is_local


def test_version_is_not_promoted_on_record_when_the_place_cannot_be_kept(tmp_path, monkeypatch):
    """It would not be served either, but by the next process."""
    with DataFolder(tmp_path, max_versions=5, now_s=lambda: 0.0) as data:
        library, inbox = Library(data.versions, SPEC, "tiny", "digest"), Inbox()
        archive = Archive(data, library, inbox, HeldWorker())
        published = library.publish("a", state(1), {})

        def is_full(adapter):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(data.checkpoints, "keep_place", is_full)
        archive.record_promotion(Published.foreign(published, state(1), "asked for", None))
        messages = []
        inbox.drain(messages.append)
        assert [type(message) for message in messages] == [PromotionFailed]
        assert data.decisions.active() == {}


def test_job_counts_on_from_its_place_with_what_is_served(tmp_path):
    """It has one step left to take of those that it is to take in all."""
    checkpoint, data_dir = tiny_checkpoint(tmp_path / "model", "llama"), tmp_path / "data"
    replica = open_tiny_replica(checkpoint, data_dir, learning())
    wait_until(lambda: replica.client.snapshot()["adapters"]["tutor"]["step"] >= 3)
    replica.close()
    with DataFolder(data_dir, max_versions=20, now_s=lambda: 0.0) as data:
        num_steps = int(data.checkpoints.load("tutor").meta["num_steps"])
        data.checkpoints.keep_place("tutor")
    replica = open_tiny_replica(checkpoint, data_dir, learning(total_steps=num_steps + 1))
    try:

        def progress():
            return replica.client.snapshot()["adapters"]["tutor"]

        wait_until(lambda: progress()["status"] == "succeeded")
        assert progress()["step"] == num_steps + 1
        taken = progress()["training_tokens"]
        assert 0 < taken < 2 * learning().tokens_per_step
    finally:
        replica.close()
