"""A real replica as its front sees and asks it."""

import asyncio
import hashlib

import pytest

from collm.cluster.snapshot_json import from_json, to_json
from collm.errors import AdapterError, RoundError, StateError, UnknownAdapterError
from collm.federated.factors import read_factors
from collm.federated.rounds import GatePlan, RoundPlan
from collm.lora.peft_folder import PEFT_CONFIG, PEFT_WEIGHTS, save_peft
from collm.model.checkpoint import Checkpoint
from collm.server.front.ids import replica_of
from factories.checkpoints import tiny_checkpoint
from factories.engines import random_adapter
from factories.replicas import BASE_MODEL, learning, open_tiny_replica, training
from factories.waiting import wait_until


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def replica(checkpoint, tmp_path):
    job = learning()
    rooms = {"training": training(job, rounds=("tutor",)), "name": "r0"}
    opened = open_tiny_replica(checkpoint, tmp_path / "data", job, **rooms)
    yield opened
    opened.close()


def plan(number=1, **changes):
    values = {
        "adapter": "tutor",
        "round": number,
        "members": ("r0",),
        "base_version": None,
        "max_tokens": 600,
        "deadline_s": 60.0,
    }
    return RoundPlan(**(values | changes))


def train(replica, number=1, **changes):
    asyncio.run(replica.rounds.start_round(plan(number, **changes)))
    wait_until(lambda: replica.rounds.round_progress("tutor", number).report)
    return replica.rounds.round_progress("tutor", number).report


def publish(replica, checkpoint, folder, label="1", seed=3, **metadata):
    folder.mkdir(exist_ok=True)
    base = Checkpoint(checkpoint)
    save_peft(random_adapter(base.spec, seed=seed), folder, BASE_MODEL, base.digest)
    config = (folder / PEFT_CONFIG).read_bytes()
    call = replica.rounds.publish(f"tutor@{label}", config, folder / PEFT_WEIGHTS, metadata)
    asyncio.run(call)


def test_snapshot_is_what_a_front_reads(replica, checkpoint):
    snapshot = replica.rounds.state()
    assert from_json(to_json(snapshot), url="", taken_at_s=0.0) == snapshot
    assert snapshot.replica_id == "r0"
    assert set(snapshot.names) == {BASE_MODEL, "tutor"}
    assert snapshot.base_digest == Checkpoint(checkpoint).digest
    assert (snapshot.num_running, snapshot.num_waiting) == (0, 0)
    wait_until(lambda: "tutor" in replica.rounds.state().quality)
    learning = replica.rounds.state().learning["tutor"]
    assert learning.is_joint
    assert learning.evaluation is not None
    assert learning.evaluation.num_tokens == 0


def test_a_round_leaves_an_update_whose_bytes_are_those_reported(replica, tmp_path, checkpoint):
    report = train(replica)
    content = asyncio.run(replica.rounds.update("tutor", 1))
    assert hashlib.sha256(content).hexdigest() == report.digest
    path = tmp_path / "update.safetensors"
    path.write_bytes(content)
    file = read_factors(path, "r0", 1 << 20, report.digest)
    assert file.base_digest == Checkpoint(checkpoint).digest
    assert report.is_complete
    assert 0 < report.num_tokens <= 600
    assert replica.data.decisions.history("tutor") == ()


def test_a_round_from_an_unknown_version_is_not_begun(replica):
    with pytest.raises(UnknownAdapterError):
        train(replica, base_version="tutor@7")
    with pytest.raises(RoundError, match="no job"):
        asyncio.run(replica.rounds.start_round(plan(adapter="nobody")))


def test_an_unfinished_round_has_no_update_until_it_is_told_to_finish(replica):
    asyncio.run(replica.rounds.start_round(plan(max_tokens=10_000_000)))
    with pytest.raises(StateError):
        asyncio.run(replica.rounds.update("tutor", 1))
    asyncio.run(replica.rounds.finish_round("tutor", 1))
    wait_until(lambda: replica.rounds.round_progress("tutor", 1).report)
    assert not replica.rounds.round_progress("tutor", 1).report.is_complete


def test_a_version_is_kept_compared_and_served_under_its_name(replica, checkpoint, tmp_path):
    for _ in range(2):
        publish(replica, checkpoint, tmp_path / "one", members="r0")
    with pytest.raises(AdapterError, match="other content"):
        publish(replica, checkpoint, tmp_path / "other", seed=4)
    gate = GatePlan(adapter="tutor", round=1, candidate="tutor@1", active=None, max_samples=16)
    for _ in range(2):
        asyncio.run(replica.rounds.start_gate(gate))
    wait_until(lambda: replica.rounds.gate_progress("tutor", 1).report)
    report = replica.rounds.gate_progress("tutor", 1).report
    assert sum(sums.n for sums in report.slices.values()) == 16
    assert report.num_not_finite == 0
    for _ in range(2):
        info = asyncio.run(replica.rounds.promote("tutor@1", "better", {"increase": -0.5}))
        assert (info.version, info.is_active) == ("tutor@1", True)
    (decision,) = replica.data.decisions.history("tutor")
    assert (decision.reason, decision.numbers) == ("better", {"increase": -0.5})
    wait_until(lambda: replica.rounds.state().active == {"tutor": "tutor@1"})
    assert train(replica, 2, base_version="tutor@1").base_version == "tutor@1"


def test_an_adapter_returns_to_the_base_and_the_next_round_begins_there(
    replica, checkpoint, tmp_path
):
    publish(replica, checkpoint, tmp_path / "one", members="r0")
    asyncio.run(replica.rounds.promote("tutor@1", "better", {}))
    wait_until(lambda: replica.rounds.state().active == {"tutor": "tutor@1"})
    for _ in range(2):
        asyncio.run(replica.rounds.return_to_base("tutor", "rolled back", {}))
    wait_until(lambda: replica.rounds.state().active == {})
    assert [row.version for row in replica.data.decisions.history("tutor")] == ["tutor@1", "base"]
    assert train(replica, 2).base_version is None


def test_files_and_jobs_of_a_cluster_name_their_replica(replica):
    content = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant"}]}\n'
    content = content.replace(b'"assistant"}', b'"assistant", "content": "b"}')
    stored = asyncio.run(replica.uploads.add("data.jsonl", "fine-tune", content))
    assert replica_of(stored.file_id) == "r0"
    (job,) = replica.data.jobs.unfinished()
    assert replica_of(job.job_id) == "r0"
