"""What is too old or too much leaves the disk, and training."""

from collm.replica.config import ReplicaConfig
from collm.replica.inbox import Inbox, RemoveSample
from collm.replica.retention import Retention
from collm.store.data_folder import DataFolder
from collm.store.responses import StoredResponse
from factories.checkpoints import tiny_checkpoint
from factories.replicas import publish_on_disk


def drain(inbox):
    seen = []
    inbox.drain(seen.append)
    return seen


def test_sweep_keeps_the_latest_and_tells_training_what_is_gone(tmp_path):
    publish_on_disk(tiny_checkpoint(tmp_path / "model", "llama"), tmp_path / "data", 1)
    inbox = Inbox()
    config = ReplicaConfig(max_feedback_samples=2, max_responses=1, feedback_days=10)
    now_s = [0.0]
    with DataFolder(tmp_path / "data", max_versions=5, now_s=lambda: now_s[0]) as data:
        retention = Retention(data, inbox, config)
        ids = []
        for number in range(3):
            data.responses.add_many([response(f"r{number}")])
            ids.append(add_feedback(data, number).feedback_id)
        retention.sweep()
        assert drain(inbox) == [RemoveSample("tutor", ids[0])]
        assert [item.feedback_id for item in data.feedback.samples("tutor")] == ids[1:]
        assert data.responses.get("r2").response_id == "r2"
        retention.sweep()
        assert drain(inbox) == []
        now_s[0] = 10 * 86_400.0 + 1
        retention.sweep()
        assert drain(inbox) == [RemoveSample("tutor", id) for id in ids[1:]]


def response(response_id):
    return StoredResponse(
        response_id=response_id,
        model="tutor",
        adapter="tutor",
        version="tutor@1",
        messages=({"role": "user", "content": "?"},),
        answers=("!",),
        created_at_s=0.0,
    )


def add_feedback(data, number):
    return data.feedback.add(
        response_id=f"r{number}",
        choice=0,
        adapter="tutor",
        version="tutor@1",
        rating=None,
        messages=[{"role": "assistant", "content": str(number)}],
        weight=1.0,
    )
