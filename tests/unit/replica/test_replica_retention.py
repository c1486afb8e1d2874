"""What is too old or too much leaves the disk, and training."""

from collm.replica.config import ReplicaConfig
from collm.replica.inbox import Inbox, RemoveSample
from collm.replica.retention import Retention
from collm.store.data_folder import DataFolder
from collm.store.responses import StoredResponse


def drain(inbox):
    seen = []
    inbox.drain(seen.append)
    return seen


def test_sweep_keeps_the_latest_and_tells_training_what_is_gone(tmp_path):
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


def test_sweep_limits_the_feedback_of_each_adapter_also_before_its_first_version(tmp_path):
    """As long as a job has published nothing, the base model answers under the adapter's name."""
    inbox = Inbox()
    config = ReplicaConfig(max_feedback_samples=1)
    with DataFolder(tmp_path / "data", max_versions=5, now_s=lambda: 0.0) as data:
        assert data.versions.published() == ()
        ids = {
            adapter: [add_feedback(data, number, adapter).feedback_id for number in range(3)]
            for adapter in ("one", "two")
        }
        Retention(data, inbox, config).sweep()
        assert drain(inbox) == [
            RemoveSample(adapter, dropped) for adapter in ids for dropped in ids[adapter][:2]
        ]
        for adapter in ids:
            assert [s.feedback_id for s in data.feedback.samples(adapter)] == ids[adapter][2:]


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


def add_feedback(data, number, adapter="tutor"):
    return data.feedback.add(
        response_id=f"r{number}",
        choice=0,
        adapter=adapter,
        version=f"{adapter}@1",
        rating=None,
        messages=[{"role": "assistant", "content": str(number)}],
        weight=1.0,
    )
