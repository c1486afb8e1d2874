"""What a replica takes up from its data folder when it starts."""

import logging
from concurrent.futures import Future
from functools import partial

import pytest

from collm.engine.scheduler import Scheduler
from collm.errors import ConfigError, DataError
from collm.lora.config import LoraConfig
from collm.replica.inbox import Rollback
from collm.store.data_folder import DataFolder
from factories.checkpoints import tiny_checkpoint
from factories.replicas import SAMPLES, learning, open_tiny_replica, publish_on_disk
from factories.waiting import wait_until


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def opened_on(tmp_path):
    """Open replicas of a checkpoint on ``tmp_path``; they are closed at the end."""
    replicas = []

    def open_one(checkpoint, *jobs, **rooms):
        replicas.append(open_tiny_replica(checkpoint, tmp_path, *jobs, **rooms))
        return replicas[-1]

    yield open_one
    for replica in replicas:
        replica.close()


@pytest.fixture
def opened(checkpoint, opened_on):
    """Open replicas of the usual checkpoint."""
    return partial(opened_on, checkpoint)


def active(replica):
    return {info.version for info in replica.client.versions() if info.is_active}


def loaded(replica):
    return {info.version for info in replica.client.versions()}


def file_of(data_dir, version):
    adapter, label = version.split("@")
    return data_dir / "adapters" / adapter / label / "adapter_model.safetensors"


def test_active_version_is_served_and_the_one_before_is_held(checkpoint, tmp_path, opened):
    publish_on_disk(checkpoint, tmp_path, 1, 2, 3, num_promoted=2)
    replica = opened()
    assert active(replica) == {"tutor@2"}
    assert loaded(replica) == {"tutor@1", "tutor@2"}
    reply = Future()
    replica.inbox.put(Rollback("tutor", reply))
    assert reply.result(60).version == "tutor@1"


def test_damaged_active_version_is_replaced_by_the_one_held(checkpoint, tmp_path, opened, caplog):
    caplog.set_level(logging.CRITICAL)
    publish_on_disk(checkpoint, tmp_path, 1, 2, num_promoted=2)
    file_of(tmp_path, "tutor@2").write_bytes(b"rubbish")
    assert active(opened()) == {"tutor@1"}


def test_damaged_held_version_is_left_out(checkpoint, tmp_path, opened, caplog):
    caplog.set_level(logging.CRITICAL)
    publish_on_disk(checkpoint, tmp_path, 1, 2, num_promoted=2)
    file_of(tmp_path, "tutor@1").unlink()
    assert loaded(opened()) == {"tutor@2"}


def test_versions_of_another_base_are_not_served(tmp_path, tmp_path_factory, opened, caplog):
    caplog.set_level(logging.CRITICAL)
    other = tiny_checkpoint(tmp_path_factory.mktemp("other"), "llama", seed=1)
    publish_on_disk(other, tmp_path, 1, num_promoted=1)
    replica = opened()
    assert loaded(replica) == set()
    assert [card.id for card in replica.client.models()] == ["tiny"]


def test_versions_of_the_base_before_it_was_quantized_are_not_served(
    checkpoint, tmp_path, opened, caplog
):
    caplog.set_level(logging.CRITICAL)
    publish_on_disk(checkpoint, tmp_path, 1, num_promoted=1)
    assert loaded(opened(quantization="int8")) == set()


def test_a_quantized_base_learns(tmp_path, opened):
    replica = opened(learning(), quantization="int4")
    wait_until(lambda: active(replica))


def test_with_few_slots_active_versions_come_before_held_ones(checkpoint, tmp_path, opened):
    for adapter in ("a", "b", "c"):
        publish_on_disk(checkpoint, tmp_path, 1, 2, adapter=adapter, num_promoted=2)
    replica = opened(lora=LoraConfig(max_rank=4, num_slots=4))
    assert active(replica) == {"a@2", "b@2", "c@2"}
    assert loaded(replica) == {"a@1", "a@2", "b@2", "c@2"}


def test_job_goes_on_from_its_checkpoint(opened, tmp_path):
    first = opened(learning())
    wait_until(lambda: list((tmp_path / "training" / "tutor").glob("[0-9]*")))
    first.close()
    checkpoint = first_step(tmp_path)
    second = opened(learning())
    assert second.client.snapshot()["adapters"]["tutor"]["step"] >= checkpoint > 0
    wait_until(lambda: second.client.snapshot()["adapters"]["tutor"]["step"] > checkpoint)


def first_step(data_dir):
    with DataFolder(data_dir, max_versions=100, now_s=lambda: 0.0) as data:
        return int(data.checkpoints.load("tutor").meta["num_steps"])


def test_checkpoint_of_another_base_or_shape_is_refused(
    checkpoint, opened, tmp_path, tmp_path_factory, caplog
):
    caplog.set_level(logging.CRITICAL)
    replica = opened(learning())
    wait_until(lambda: list((tmp_path / "training" / "tutor").glob("[0-9]*")))
    replica.close()
    other = tiny_checkpoint(tmp_path_factory.mktemp("other"), "llama", seed=1)
    with pytest.raises(ConfigError, match="written for another base model"):
        open_tiny_replica(other, tmp_path, learning())
    with pytest.raises(ConfigError, match="rank"):
        open_tiny_replica(checkpoint, tmp_path, learning(rank=2))
    # What failed to open let go of the folder.
    opened(learning())


def test_model_without_a_chat_template_is_served_with_one_warning(tmp_path, opened_on, caplog):
    bare = tiny_checkpoint(tmp_path / "bare", "llama")
    (bare / "chat_template.jinja").unlink()
    replica = opened_on(bare, samples={"general": SAMPLES})
    assert [card.id for card in replica.client.models()] == ["tiny"]
    (warning,) = [row for row in caplog.messages if "training.general_data" in row]
    assert "this model has no chat template" in warning
    caplog.set_level(logging.CRITICAL)
    with pytest.raises(DataError, match="'tutor': none of .* the first: .* no chat template"):
        open_tiny_replica(bare, tmp_path / "other", learning())


def test_configured_job_without_one_usable_sample_is_refused_and_names_the_adapter(
    checkpoint, tmp_path, caplog
):
    caplog.set_level(logging.CRITICAL)
    with pytest.raises(DataError, match="training.jobs: adapter 'tutor': none of 120 samples can"):
        open_tiny_replica(checkpoint, tmp_path, learning(micro_batch_tokens=4))


def test_job_beyond_the_largest_rank_is_refused(checkpoint, tmp_path):
    with pytest.raises(ConfigError, match=r"'tutor' has rank 8; lora.max_rank allows up to 4"):
        open_tiny_replica(checkpoint, tmp_path, learning(rank=8))


def test_too_few_slots_for_a_job_are_refused(checkpoint, tmp_path):
    with pytest.raises(ConfigError, match=r"lora.num_slots is 2; 1 training.jobs need at least 3"):
        open_tiny_replica(checkpoint, tmp_path, learning(), lora=LoraConfig(num_slots=2))


def test_replica_whose_loop_fails_is_not_alive(opened, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("made to fail")

    caplog.set_level(logging.CRITICAL)
    replica = opened()
    assert replica.client.is_alive
    monkeypatch.setattr(Scheduler, "schedule", fail)
    wait_until(lambda: not replica.client.is_alive)
