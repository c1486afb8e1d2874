"""Jobs over their whole life, against a running replica of a tiny model."""

import asyncio
import json
import re
import threading
from contextlib import closing

import pytest

from collm.errors import DiskFullError, RequestError, StateError, UnknownObjectError
from collm.gate.config import GateConfig
from collm.lora.config import LoraConfig
from collm.replica import job_builder
from collm.replica.job_builder import JobBuilder
from collm.server.learning_backend import JobRequest
from collm.store.jobs import JobStatus
from factories.checkpoints import tiny_checkpoint
from factories.replicas import BASE_MODEL, CHATS, learning, open_tiny_replica, training
from factories.waiting import WAIT_S, wait_until

CONTENT = "".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS).encode()
QUICK = {"rank": 4, "learning_rate": 3e-3, "tokens_per_step": 200}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


class Opened:
    """A replica and an event loop for what is asked of it; may be opened again."""

    def __init__(self, checkpoint, data_dir):
        self._checkpoint, self._data_dir = checkpoint, data_dir
        self.runner = asyncio.Runner()
        self.replica = None

    def open(self, *jobs, **rooms):
        self.close()
        self.replica = open_tiny_replica(self._checkpoint, self._data_dir, *jobs, **rooms)
        return self

    def close(self):
        if self.replica is not None:
            self.replica.close()
            self.replica = None

    def do(self, call):
        async def bounded():
            return await asyncio.wait_for(call, 60)

        return self.runner.run(bounded())

    def upload(self, content=CONTENT):
        return self.do(self.replica.uploads.add("chats.jsonl", "fine-tune", content)).file_id

    def create(self, adapter="tutor", **fields):
        request = {
            "adapter": adapter,
            "base_model": BASE_MODEL,
            "training_file": None,
            "validation_file": None,
            "is_continuous": True,
            "hyperparameters": QUICK,
        }
        return self.do(self.replica.fine_tuning.create(JobRequest(**(request | fields))))

    def ask(self, name, job_id):
        return self.do(getattr(self.replica.fine_tuning, name)(job_id))

    def status(self, job_id):
        return self.ask("get", job_id).status

    def wait_for(self, job_id, status):
        """Wait; for a whole job if need be, whose micro-batches are small on a busy machine."""
        wait_until(lambda: self.status(job_id) is status, within_s=4 * WAIT_S)

    def events(self, job_id):
        page = self.do(self.replica.fine_tuning.events(job_id, after=None, limit=100))
        return [event.message for event in page.items]


@pytest.fixture
def opened(checkpoint, tmp_path):
    opened = Opened(checkpoint, tmp_path)
    with closing(opened.runner), closing(opened):
        yield opened.open()


def test_job_runs_publishes_and_succeeds_after_its_epochs(opened):
    file_id = opened.upload()
    job = opened.create(
        training_file=file_id,
        is_continuous=False,
        hyperparameters=QUICK | {"n_epochs": 12},
        metadata={"team": "a"},
        seed=4,
    )
    assert job.status is JobStatus.VALIDATING_FILES
    assert (job.settings["seed"], job.settings["n_epochs"]) == (4, 12)
    opened.wait_for(job.job_id, JobStatus.SUCCEEDED)
    record = opened.ask("get", job.job_id)
    assert record.result is not None
    assert record.num_trained_tokens > 1_000
    assert record.started_at_s <= record.finished_at_s
    page = opened.do(opened.replica.fine_tuning.checkpoints(job.job_id, after=None, limit=100))
    assert page.items[0].version == record.result
    assert page.items[0].metrics["full_valid_loss"] > 0
    assert opened.events(job.job_id)[-1] == "training begins"
    active = [info.version for info in opened.replica.client.versions() if info.is_active]
    assert active == [record.result]
    found = opened.replica.fine_tuning.list(after=None, limit=5, metadata={"team": "a"})
    assert [item.job_id for item in opened.do(found).items] == [job.job_id]


def test_job_that_leaves_its_rank_open_is_served_whatever_the_largest_is(opened):
    """The replica's slots have rank 4, a quarter of the default."""
    chosen = {name: value for name, value in QUICK.items() if name != "rank"} | {"n_epochs": 12}
    job = opened.create(training_file=opened.upload(), is_continuous=False, hyperparameters=chosen)
    opened.wait_for(job.job_id, JobStatus.SUCCEEDED)
    active = [info for info in opened.replica.client.versions() if info.is_active]
    assert [info.rank for info in active] == [4]
    assert opened.ask("get", job.job_id).result == active[0].version


def test_job_of_feedback_alone_can_prove_something_after_some_thirty_pieces(opened):
    for number in range(40):
        opened.replica.data.feedback.add(**feedback(f"It is answer number {number}."))
    job = opened.create()
    opened.wait_for(job.job_id, JobStatus.RUNNING)
    wait_until(lambda: "training begins" in opened.events(job.job_id))
    assert warnings_of(opened, job) == []


def warnings_of(opened, job):
    page = opened.do(opened.replica.fine_tuning.events(job.job_id, after=None, limit=100))
    return [event.message for event in reversed(page.items) if event.level == "warn"]


def test_client_is_told_what_is_left_out_and_that_too_few_are_held_out(opened):
    strict = training(gate=GateConfig())
    opened.open(training=strict)
    lines = CONTENT.splitlines()[:12]
    too_long = json.dumps({"messages": CHATS[20]}).replace("Number", "n" * 9_000).encode()
    validation_file = opened.upload(b"\n".join(CONTENT.splitlines()[50:53]))
    training_file = opened.upload(b"\n".join([*lines, too_long]))
    job = opened.create(training_file=training_file, validation_file=validation_file)
    opened.wait_for(job.job_id, JobStatus.RUNNING)
    wait_until(lambda: len(warnings_of(opened, job)) == 2)
    left_out, too_few = warnings_of(opened, job)
    assert re.match(
        r"left out: 1 of 13 training samples, 1 of them too long; the first: \d+ tokens; at most",
        left_out,
    )
    assert re.match(r"too few samples are held out to judge by, 3: fewer than 6 can", too_few)
    opened.open(training=strict)
    wait_until(lambda: opened.status(job.job_id) is JobStatus.RUNNING)
    assert len(warnings_of(opened, job)) == 2


def test_client_of_a_job_with_enough_usable_samples_is_not_warned(opened):
    job = opened.create(training_file=opened.upload())
    wait_until(lambda: "training begins" in opened.events(job.job_id))
    wait_until(lambda: step(opened) > 0)
    assert warnings_of(opened, job) == []


def test_samples_per_step_become_tokens_per_step(opened, monkeypatch):
    seen = []

    class Remembered(job_builder.Job):
        def __init__(self, config, *args):
            seen.append(config)
            super().__init__(config, *args)

    monkeypatch.setattr(job_builder, "Job", Remembered)
    file_id = opened.upload()
    job = opened.create(training_file=file_id, hyperparameters={"rank": 4, "batch_size": 8})
    opened.wait_for(job.job_id, JobStatus.RUNNING)
    (config,) = seen
    assert 8 * 10 < config.tokens_per_step < 8 * 60


def test_continuous_job_without_a_file_waits_for_feedback(opened):
    job = opened.create()
    opened.wait_for(job.job_id, JobStatus.RUNNING)
    assert opened.replica.client.snapshot()["adapters"]["tutor"]["step"] == 0
    assert opened.ask("cancel", job.job_id).status is JobStatus.CANCELLED


def test_paused_job_rests_also_over_a_restart_until_it_is_resumed(opened):
    job = opened.create(training_file=opened.upload())
    opened.wait_for(job.job_id, JobStatus.RUNNING)
    wait_until(lambda: step(opened) > 0)
    assert opened.ask("pause", job.job_id).status is JobStatus.PAUSED
    assert opened.ask("pause", job.job_id).status is JobStatus.PAUSED
    wait_until(lambda: progress(opened)["status"] == JobStatus.PAUSED)  # the board knows as well
    resting = step(opened)
    opened.open()
    assert opened.status(job.job_id) is JobStatus.PAUSED
    assert step(opened) == resting
    assert opened.ask("resume", job.job_id).status is JobStatus.RUNNING
    wait_until(lambda: step(opened) > resting)
    with pytest.raises(StateError, match="is running, not paused"):
        opened.ask("resume", job.job_id)


@pytest.mark.parametrize(("name", "status"), [("pause", "paused"), ("resume", "running")])
def test_what_a_full_disk_does_not_let_be_noted_is_undone(opened, monkeypatch, name, status):
    job = opened.create(training_file=opened.upload())
    opened.wait_for(job.job_id, JobStatus.RUNNING)
    if name == "resume":
        opened.ask("pause", job.job_id)
    before = JobStatus(opened.status(job.job_id))
    jobs, is_full = opened.replica.data.jobs, True
    change = jobs.change

    def change_if_there_is_room(job_id, **changes):
        if is_full and changes.get("status") == status:
            raise DiskFullError("the database cannot grow")
        return change(job_id, **changes)

    monkeypatch.setattr(jobs, "change", change_if_there_is_room)
    with pytest.raises(DiskFullError):
        opened.ask(name, job.job_id)
    wait_until(lambda: progress(opened)["status"] == before)
    assert opened.status(job.job_id) is before
    is_full = False
    assert opened.ask(name, job.job_id).status == status


def progress(opened):
    return opened.replica.client.snapshot()["adapters"]["tutor"]


def step(opened):
    return progress(opened)["step"]


def test_ended_job_can_be_neither_cancelled_nor_paused(opened):
    job = opened.create()
    opened.ask("cancel", job.job_id)
    for name in ("cancel", "pause"):
        with pytest.raises(StateError, match="has ended: cancelled"):
            opened.ask(name, job.job_id)
    for name in ("get", "cancel", "pause", "resume"):
        with pytest.raises(UnknownObjectError):
            opened.ask(name, "ftjob-nothing")


def test_job_is_cancelled_while_it_is_built(opened, monkeypatch):
    is_building, may_go_on = threading.Event(), threading.Event()

    def build(self, record, courtesy):
        is_building.set()
        may_go_on.wait(60)
        list(courtesy.spaced([1]))

    monkeypatch.setattr(JobBuilder, "build", build)
    job = opened.create()
    opened.do(asyncio.to_thread(is_building.wait, 30))
    assert opened.ask("cancel", job.job_id).status is JobStatus.CANCELLED
    may_go_on.set()
    assert opened.replica.fine_tuning._building == {}
    assert "tutor" not in opened.replica.client.snapshot()["adapters"]
    opened.ask("get", job.job_id)


def test_pause_waits_until_the_job_is_built(opened):
    file_id = opened.upload()
    job = opened.create(training_file=file_id)
    assert opened.ask("pause", job.job_id).status is JobStatus.PAUSED
    assert step(opened) >= 0


def test_feedback_that_comes_while_a_job_is_built_is_not_missed(opened, monkeypatch):
    build, added = JobBuilder.build, []

    def add_meanwhile(self, record, courtesy):
        built = build(self, record, courtesy)
        data = opened.replica.data
        added.append(data.feedback.add(**feedback("Odd.")))
        data.feedback.delete(before.feedback_id)
        return built

    before = opened.replica.data.feedback.add(**feedback("Even."))
    monkeypatch.setattr(JobBuilder, "build", add_meanwhile)
    sent = []
    send = opened.replica.fine_tuning._post.send
    monkeypatch.setattr(
        opened.replica.fine_tuning._post, "send", lambda m: (sent.append(m), send(m))
    )
    job = opened.create()
    opened.wait_for(job.job_id, JobStatus.RUNNING)
    wait_until(lambda: opened.status(job.job_id) and len(sent) == 3)
    assert [sample.sample_id for sample in sent[1].samples] == [added[0].feedback_id]
    assert sent[2].sample_id == before.feedback_id


def feedback(answer):
    return {
        "response_id": "r1",
        "choice": 0,
        "adapter": "tutor",
        "version": "tutor@1",
        "rating": None,
        "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}],
        "weight": 1.0,
    }


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"training_file": "file-9"}, "training_file", "'file-9' does not exist"),
        ({"validation_file": "file-9"}, "validation_file", "'file-9' does not exist"),
        ({"hyperparameters": {"rank": 8}}, "rank", "lora.max_rank allows up to 4"),
        ({"adapter": BASE_MODEL}, "suffix", "not allowed"),
    ],
)
def test_request_that_does_not_suit_the_replica_is_refused(opened, fields, param, reason):
    with pytest.raises(RequestError, match=reason) as raised:
        opened.create(**fields)
    assert raised.value.param == param
    assert opened.replica.data.jobs.list().items == ()


def test_second_job_of_an_adapter_and_one_without_slots_are_refused(opened):
    job = opened.create()
    with pytest.raises(StateError, match=job.job_id):
        opened.create()
    opened.create("second")
    with pytest.raises(StateError, match="3 jobs need 7 adapter slots and lora.num_slots is 6"):
        opened.create("third")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (CONTENT[:200].partition(b"\n")[0], "leave none to"),
        (
            json.dumps({"messages": CHATS[0]}).encode().replace(b"Number", b"n" * 9_000),
            "too long|fit",
        ),
    ],
)
def test_file_that_cannot_be_trained_on_fails_its_job(opened, content, reason):
    job = opened.create(training_file=opened.upload(content))
    opened.wait_for(job.job_id, JobStatus.FAILED)
    error = opened.ask("get", job.job_id).error
    assert set(error) == {"code", "message", "param"}
    assert opened.events(job.job_id)[0] == error["message"]
    assert opened.create(training_file=opened.upload()).status is JobStatus.VALIDATING_FILES


def test_new_job_of_an_adapter_goes_on_from_what_is_served_not_from_the_old_state(opened):
    file_id = opened.upload()
    first = opened.create(training_file=file_id)
    wait_until(lambda: opened.status(first.job_id) and served(opened))
    opened.ask("cancel", first.job_id)
    opened.open()
    # One more than was served may have been on its way.
    promoted = [row.version for row in opened.replica.data.decisions.history("tutor")]
    second = opened.create(training_file=file_id)
    opened.wait_for(second.job_id, JobStatus.RUNNING)
    wait_until(lambda: opened.events(second.job_id))
    assert opened.events(second.job_id)[-1] == "training begins"
    assert served(opened)[0].partition("@")[0] == "tutor"
    assert opened.ask("get", first.job_id).result in promoted


def served(opened):
    return [info.version for info in opened.replica.client.versions() if info.is_active]


def test_configured_job_has_a_row_that_outlives_restarts_and_ends_with_the_file(opened):
    opened.open(learning())
    (record,) = opened.replica.data.jobs.unfinished()
    assert (record.adapter, record.is_configured, record.is_continuous) == ("tutor", True, True)
    with pytest.raises(StateError, match=record.job_id):
        opened.create()
    opened.open(learning(learning_rate=1e-3))
    (again,) = opened.replica.data.jobs.unfinished()
    assert (again.job_id, again.settings["learning_rate"]) == (record.job_id, 1e-3)
    opened.open()
    assert opened.replica.data.jobs.unfinished() == ()
    gone = opened.replica.data.jobs.get(record.job_id)
    assert (gone.status, gone.error["code"]) == (JobStatus.CANCELLED, "left_configuration")
    opened.open(learning())
    (new,) = opened.replica.data.jobs.unfinished()
    assert new.job_id != record.job_id


def test_configured_job_that_was_cancelled_stays_so_until_its_settings_change(opened):
    opened.open(learning())
    (record,) = opened.replica.data.jobs.unfinished()
    opened.ask("cancel", record.job_id)
    opened.open(learning())
    assert opened.replica.data.jobs.unfinished() == ()
    opened.open(learning(rank=2))
    assert len(opened.replica.data.jobs.unfinished()) == 1


def test_configured_job_that_took_all_its_steps_stays_ended(opened):
    opened.open(learning(total_steps=2))
    wait_until(lambda: not opened.replica.data.jobs.unfinished())
    (record,) = opened.replica.data.jobs.list().items
    assert record.status is JobStatus.SUCCEEDED
    opened.open(learning(total_steps=2))
    assert opened.replica.data.jobs.unfinished() == ()


def test_configuration_that_names_an_adapter_of_a_clients_job_is_refused(opened):
    job = opened.create()
    opened.wait_for(job.job_id, JobStatus.RUNNING)
    opened.close()
    with pytest.raises(Exception, match=f"'tutor', which job {job.job_id} of a client trains"):
        opened.open(learning())
    opened.open(learning("other"), lora=LoraConfig(max_rank=4, num_slots=6))


def test_job_whose_file_is_lost_fails_at_the_restart_and_the_others_go_on(opened, caplog):
    caplog.set_level("CRITICAL")
    file_id = opened.upload()
    lost = opened.create(training_file=file_id)
    kept = opened.create("kept")
    for job in (lost, kept):
        opened.wait_for(job.job_id, JobStatus.RUNNING)
    path = opened.replica.data.files.get(file_id).path
    opened.close()
    path.write_bytes(b"rubbish")
    opened.open()
    assert opened.status(lost.job_id) is JobStatus.FAILED
    assert opened.status(kept.job_id) is JobStatus.RUNNING


def test_adapter_that_is_still_learned_has_a_history_without_decisions(opened):
    job = opened.create()
    opened.wait_for(job.job_id, JobStatus.RUNNING)
    opened.ask("pause", job.job_id)
    assert opened.do(opened.replica.adapters.history("tutor")) == ()
