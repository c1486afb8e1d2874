"""Files, jobs, answers and feedback survive a kill at any instant, whole or not at all."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from collm.errors import StateError, UnknownObjectError
from collm.store.data_folder import DataFolder
from collm.store.jobs import JobRecord, JobStatus
from factories.killed_process import acknowledged_before_kill, acknowledged_before_line
from factories.learning_writer import (
    ADAPTER,
    MAX_SAMPLES,
    NUM_TOKENS,
    add_feedback,
    content,
    messages,
    open_folder,
    response,
)

WRITER = "learning_writer"
LIMIT = 10_000
LINES = 2800
"""Lines of the store's code that almost three turns of the writer run."""
PROGRESS = [JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED, JobStatus.CANCELLED]


@dataclass
class Acknowledged:
    """Per kind of line, its first word after the kind and what followed it last."""

    lines: dict[str, dict[str, str]] = field(default_factory=dict)

    def read(self, lines: list[str]) -> None:
        for kind, key, *rest in map(str.split, lines):
            self.lines.setdefault(kind, {})[key] = " ".join(rest)

    def __getitem__(self, kind: str) -> dict[str, str]:
        return self.lines.get(kind, {})


def check(folder: Path, acknowledged: Acknowledged) -> None:
    with open_folder(folder) as data:
        check_files(data, folder, acknowledged)
        check_jobs(data, acknowledged)
        for name in acknowledged["response"]:
            assert data.responses.get(name) == response(name)
        check_feedback(data, acknowledged)
        check_forgotten(data, acknowledged)
    assert not list(folder.rglob(".new-*"))


def check_files(data: DataFolder, folder: Path, acknowledged: Acknowledged) -> None:
    files = data.files.list(limit=LIMIT).items
    for file in files:
        assert data.files.read(file.file_id) == content(file.filename)
    ids = {file.file_id for file in files}
    assert {path.name for path in (folder / "files").glob("*")} == ids
    assert acknowledged["file"].keys() - acknowledged["deleting"].keys() <= ids
    assert not ids & acknowledged["deleted"].keys()


def check_jobs(data: DataFolder, acknowledged: Acknowledged) -> None:
    jobs = {job.job_id: job for job in data.jobs.list(limit=LIMIT).items}
    for job_id, status in acknowledged["job"].items():
        assert PROGRESS.index(jobs[job_id].status) >= PROGRESS.index(JobStatus(status))
    for job in jobs.values():
        check_job(data, job, acknowledged)
    assert len(data.jobs.unfinished()) <= 1


def check_job(data: DataFolder, job: JobRecord, acknowledged: Acknowledged) -> None:
    if job.status is not JobStatus.CANCELLED:
        assert job.num_trained_tokens == NUM_TOKENS[job.status]
    assert (job.finished_at_s is not None) == job.status.has_ended
    if not job.status.has_ended:
        assert job.training_file is not None
        data.files.read(job.training_file)
    events = data.job_logs.events(job.job_id, limit=LIMIT).items
    told = [JobStatus.SUCCEEDED, JobStatus.RUNNING][-len(events) :] if events else []
    assert [event.message for event in events] == told
    points = data.job_logs.checkpoints(job.job_id, limit=LIMIT).items
    for kind, found in (
        ("event", {event.event_id for event in events}),
        ("checkpoint", {point.checkpoint_id for point in points}),
    ):
        wanted = {key for key, job_id in acknowledged[kind].items() if job_id == job.job_id}
        assert wanted <= found


def check_feedback(data: DataFolder, acknowledged: Acknowledged) -> None:
    samples = {sample.feedback_id: sample for sample in data.feedback.samples(ADAPTER)}
    for sample in samples.values():
        name = sample.response_id
        assert sample.messages == messages(name)
        with pytest.raises(StateError, match=f"exists already: {sample.feedback_id}"):
            add_feedback(data, name)
    kept = [key for key in acknowledged["feedback"] if key not in acknowledged["forgetting"]]
    missing = [key for key in kept if key not in samples]
    assert missing == kept[: len(missing)], "retention drops the oldest"
    assert not missing or len(samples) >= MAX_SAMPLES
    assert not samples.keys() & (acknowledged["forgotten"].keys() | acknowledged["dropped"].keys())


def check_forgotten(data: DataFolder, acknowledged: Acknowledged) -> None:
    forgotten = list(acknowledged["forgotten"])
    missing = [key for key in forgotten if not is_known(data, key)]
    assert missing == forgotten[: len(missing)], "of refusals, too, the oldest go"
    refused = [key for key in acknowledged["forgetting"] if is_known(data, key)]
    assert not missing or len(refused) >= MAX_SAMPLES
    for feedback_id in forgotten[len(missing) :]:
        assert data.feedback.get(feedback_id).messages is None
        with pytest.raises(StateError, match=f"was deleted: {feedback_id}"):
            add_feedback(data, acknowledged["feedback"][feedback_id])
    for feedback_id in acknowledged["dropped"]:
        assert not is_known(data, feedback_id)


def is_known(data: DataFolder, feedback_id: str) -> bool:
    try:
        data.feedback.get(feedback_id)
    except UnknownObjectError:
        return False
    return True


@pytest.mark.parametrize("line", sorted(random.Random(4).sample(range(1, LINES), 14)))
def test_learning_killed_before_a_line_of_the_store_loses_nothing(
    tmp_path: Path, line: int
) -> None:
    acknowledged = Acknowledged()
    acknowledged.read(acknowledged_before_line(WRITER, tmp_path, line))
    check(tmp_path, acknowledged)


@pytest.mark.parametrize("num_lines", sorted(random.Random(5).sample(range(1, 80), 4)))
def test_learning_killed_from_outside_loses_nothing(tmp_path: Path, num_lines: int) -> None:
    acknowledged = Acknowledged()
    acknowledged.read(acknowledged_before_kill(WRITER, tmp_path, num_lines))
    check(tmp_path, acknowledged)


def test_learning_killed_again_and_again_goes_on_from_where_it_was(tmp_path: Path) -> None:
    draw = random.Random(6)
    acknowledged = Acknowledged()
    for _ in range(4):
        line = draw.randrange(300, LINES)
        acknowledged.read(acknowledged_before_line(WRITER, tmp_path, line))
        check(tmp_path, acknowledged)
