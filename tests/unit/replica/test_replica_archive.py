"""What is on disk when a message says so, and what happens when it cannot be."""

import logging
import threading
from concurrent.futures import Future

import pytest
import torch

from collm.errors import AdapterError
from collm.model.spec import ModelSpec
from collm.replica.archive import CHECKPOINT_BASE, CHECKPOINT_FILE, CHECKPOINT_JOB, Archive
from collm.replica.inbox import Inbox, Promoted, PromotionFailed, Published, PublishFailed
from collm.replica.library import Library
from collm.replica.writer import Writer
from collm.store.data_folder import DataFolder
from collm.training.events import TrainingSnapshot
from collm.types import VersionId
from factories.checkpoints import tiny_config
from factories.engines import random_adapter

SPEC = ModelSpec.from_config(tiny_config("llama", num_hidden_layers=1).to_dict())
STATE = random_adapter(SPEC, 2, seed=1)


@pytest.fixture
def data(tmp_path):
    with DataFolder(tmp_path, max_versions=5, now_s=lambda: 1.0) as data:
        yield data


def library_of(data, base_digest="base digest"):
    return Library(data.versions, SPEC, "tiny", base_digest)


class Started:
    """An archive whose answers a test can wait for."""

    def __init__(self, data):
        self.data = data
        self.inbox = Inbox()
        self.library = library_of(data)
        self.writer = Writer(lambda: None, 1000.0)
        self.archive = Archive(data, self.library, self.inbox, self.writer)
        self.writer.start()

    def answer(self):
        self.inbox.wait(60)
        seen = []
        self.inbox.drain(seen.append)
        (message,) = seen
        return message

    def publish(self, state=STATE):
        self.archive.publish("a", state, {"step": "3"}, {"held_out_loss": 1.5})
        return self.answer()


@pytest.fixture
def started(data):
    started = Started(data)
    yield started
    started.writer.close()


def test_published_version_is_on_disk_under_its_number(started, data):
    message = started.publish()
    assert isinstance(message, Published)
    assert (message.version, message.is_local) == ("a@1", True)
    assert message.state is STATE
    published, state = library_of(data).load(VersionId("a@1"))
    assert torch.equal(state.flat, STATE.flat)
    assert published.metadata == {"step": "3"}
    assert started.publish(random_adapter(SPEC, 2, seed=2)).version == "a@2"


def test_promotion_is_on_record_with_its_numbers(started, data):
    message = started.publish()
    started.archive.record_promotion(message)
    assert started.answer() == Promoted(message)
    (decision,) = data.decisions.history("a")
    assert (decision.reason, decision.numbers) == (
        "better on held-out samples",
        {"held_out_loss": 1.5},
    )
    assert data.decisions.active() == {"a": "a@1"}


def test_what_was_submitted_is_on_record_when_it_is_confirmed(started, data):
    for seed in (1, 2):
        started.archive.record_promotion(started.publish(random_adapter(SPEC, 2, seed)))
        started.answer()
    reply = started.archive.submit(lambda data: data.decisions.rollback("a@1", "asked for", {}))
    assert reply.result(60) is None
    assert data.decisions.active() == {"a": "a@1"}


def test_checkpoint_names_its_base_and_its_job(started, data):
    snapshot = TrainingSnapshot(adapter="a", tensors={"x": torch.ones(2)}, meta={"num_steps": "4"})
    saved: Future[None] = Future()
    started.archive.save_checkpoint(snapshot, "ftjob-1", lambda: saved.set_result(None))
    saved.result(60)
    checkpoint = data.checkpoints.load("a")
    assert checkpoint.meta == {
        "num_steps": "4",
        CHECKPOINT_BASE: "base digest",
        CHECKPOINT_JOB: "ftjob-1",
    }
    assert (checkpoint.folder / CHECKPOINT_FILE).is_file()


def test_close_finishes_what_was_asked_for(data):
    started = Started(data)
    for seed in range(3):
        started.archive.publish("a", random_adapter(SPEC, 2, seed), {}, {})
    started.writer.close()
    assert len(data.versions.published("a")) == 3


def test_failed_writes_are_reported_and_later_ones_succeed(started, data, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise OSError("disk full")

    caplog.set_level(logging.CRITICAL)
    message = started.publish()
    with monkeypatch.context() as patch:
        patch.setattr(data.versions, "publish", fail)
        patch.setattr(data.decisions, "promote", fail)
        patch.setattr(data.decisions, "rollback", fail)
        patch.setattr(data.checkpoints, "save", fail)
        failed = started.publish()
        assert isinstance(failed, PublishFailed)
        assert failed.state is STATE
        started.archive.record_promotion(message)
        answer = started.answer()
        assert isinstance(answer, PromotionFailed)
        assert answer.published is message
        saved = []
        snapshot = TrainingSnapshot(adapter="a", tensors={}, meta={})
        started.archive.save_checkpoint(snapshot, "j", lambda: saved.append(snapshot))
        seen = Future()
        started.archive.write(
            lambda data: data.decisions.rollback("a@1", "asked for", {}), seen.set_result
        )
        assert str(seen.result(60)) == "disk full"
        with pytest.raises(OSError, match="disk full"):
            started.archive.submit(fail).result(60)
        assert saved == []
    assert started.publish(random_adapter(SPEC, 2, seed=3)).version == "a@2"


def test_library_refuses_what_is_damaged_or_made_for_another_base(started, data):
    started.publish()
    version = VersionId("a@1")
    with pytest.raises(AdapterError, match="made for base base digest"):
        library_of(data, "other digest").load(version)
    with pytest.raises(AdapterError, match=r"'a@2' does not exist; published: a@1"):
        library_of(data).load(VersionId("a@2"))
    file = data.versions.get(version).folder / "adapter_model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(AdapterError, match="a@1 is damaged"):
        library_of(data).load(version)
    file.unlink()
    with pytest.raises(AdapterError, match="does not exist"):
        library_of(data).load(version)


def test_library_may_read_in_another_thread_and_brings_the_reply_along(started, data):
    started.publish()
    library, reply, seen = library_of(data), Future(), []
    thread = threading.Thread(target=lambda: seen.append(library.read(VersionId("a@1"), reply)))
    thread.start()
    thread.join(60)
    (message,) = seen
    assert (message.adapter, message.version, message.is_local) == ("a", "a@1", False)
    assert message.reply is reply
