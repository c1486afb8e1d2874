"""A process that keeps and deletes files, jobs, answers and feedback without end, to be killed.

What it keeps has a random name, from which everything else about it follows.
"""

import sys
import uuid
from pathlib import Path
from typing import Any

from collm.store.data_folder import DataFolder
from collm.store.feedback import Feedback
from collm.store.jobs import JobStatus
from collm.store.responses import StoredResponse
from collm.types import VersionId
from factories.killed_process import acknowledge, kill_self_at

ADAPTER = "a"
VERSION = VersionId("a@1")
MAX_SAMPLES = 4
NUM_TOKENS = {JobStatus.QUEUED: 0, JobStatus.RUNNING: 7, JobStatus.SUCCEEDED: 14}
"""What a job has trained once it has come to a status, both in one change."""


def content(name: str) -> bytes:
    """Return the content of the file of this name."""
    return f"{name}\n".encode() * 3000


def messages(name: str) -> tuple[dict[str, Any], ...]:
    """Return the messages of the answer or feedback of this name, longer than a page."""
    return ({"role": "user", "content": f"{name} " * 300},)


def response(name: str) -> StoredResponse:
    """Return the answer of this name."""
    return StoredResponse(
        response_id=name,
        model=ADAPTER,
        adapter=ADAPTER,
        version=VERSION,
        messages=messages(name),
        answers=(name,),
        created_at_s=0.0,
    )


def add_feedback(data: DataFolder, name: str) -> Feedback:
    """Give the feedback of this name."""
    return data.feedback.add(
        response_id=name,
        choice=0,
        adapter=ADAPTER,
        version=VERSION,
        rating=None,
        messages=messages(name),
        weight=1.0,
    )


def open_folder(path: Path) -> DataFolder:
    """Open the folder as a restarted replica does."""
    return DataFolder(path, max_versions=2, now_s=lambda: 0.0)


def _write_without_end(data: DataFolder) -> None:
    for job in data.jobs.unfinished():  # left by a killed process
        data.jobs.change(job.job_id, status=JobStatus.CANCELLED)
        acknowledge("job", job.job_id, JobStatus.CANCELLED)
    while True:
        name = uuid.uuid4().hex
        file_id = data.files.add(
            filename=name, purpose="fine-tune", content=content(name), num_samples=1
        ).file_id
        acknowledge("file", file_id, name)
        _run_job(data, file_id)
        data.responses.add_many([response(name)])
        acknowledge("response", name)
        _collect_feedback(data)
        acknowledge("deleting", file_id)
        data.files.delete(file_id)
        acknowledge("deleted", file_id)


def _run_job(data: DataFolder, file_id: str) -> None:
    job_id = data.jobs.add(
        adapter=ADAPTER,
        settings={},
        is_continuous=False,
        training_file=file_id,
        status=JobStatus.QUEUED,
    ).job_id
    acknowledge("job", job_id, JobStatus.QUEUED)
    for status in (JobStatus.RUNNING, JobStatus.SUCCEEDED):
        data.jobs.change(job_id, status=status, num_trained_tokens=NUM_TOKENS[status])
        acknowledge("job", job_id, status)
        acknowledge("event", data.job_logs.add_event(job_id, "info", status).event_id, job_id)
    point = data.job_logs.add_checkpoint(job_id, VERSION, 3, {})
    acknowledge("checkpoint", point.checkpoint_id, job_id)


def _collect_feedback(data: DataFolder) -> None:
    for _ in range(3):
        name = uuid.uuid4().hex
        feedback_id = add_feedback(data, name).feedback_id
        acknowledge("feedback", feedback_id, name)
    acknowledge("forgetting", feedback_id)
    data.feedback.delete(feedback_id)
    acknowledge("forgotten", feedback_id)
    for dropped in data.feedback.prune(ADAPTER, MAX_SAMPLES, older_than_s=1.0):
        acknowledge("dropped", dropped)


if __name__ == "__main__":
    if int(sys.argv[2]):
        kill_self_at(int(sys.argv[2]))
    with open_folder(Path(sys.argv[1])) as opened:
        _write_without_end(opened)
