import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from collm.errors import UnknownObjectError
from collm.store.data_folder import DataFolder
from collm.store.database import Database
from collm.store.job_logs import JobLogs
from collm.store.jobs import JobRecord, JobStatus, JobStore
from collm.types import VersionId


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataFolder]:
    with DataFolder(tmp_path, max_versions=2, now_s=lambda: 0.0) as opened:
        yield opened


def add(store: JobStore, adapter: str = "a") -> JobRecord:
    return store.add(adapter=adapter, settings={}, is_continuous=False)


def test_unknown_job_is_named_by_every_method(data: DataFolder) -> None:
    logs = data.job_logs
    for use in (
        lambda: logs.add_event("ftjob-9", "info", "hello"),
        lambda: logs.events("ftjob-9"),
        lambda: logs.add_checkpoint("ftjob-9", VersionId("a@1"), 1, {}),
        lambda: logs.checkpoints("ftjob-9"),
    ):
        with pytest.raises(UnknownObjectError, match="job 'ftjob-9' does not exist"):
            use()


def test_events_are_told_newest_first_page_by_page(data: DataFolder) -> None:
    logs, job, other = data.job_logs, add(data.jobs), add(data.jobs, "b")
    first = logs.add_event(job.job_id, "info", "started")
    second = logs.add_event(
        job.job_id, "warn", "step", kind="metrics", data={"loss": math.nan, "step": 3}
    )
    logs.add_event(other.job_id, "error", "other")
    assert (first.level, first.kind, first.message, first.data) == (
        "info",
        "message",
        "started",
        {},
    )
    assert (second.level, second.kind) == ("warn", "metrics")
    assert second.data == {"loss": "nan", "step": 3}
    page = logs.events(job.job_id, limit=1)
    assert (page.items, page.has_more) == ((second,), True)
    page = logs.events(job.job_id, after=second.event_id, limit=1)
    assert (page.items, page.has_more) == ((first,), False)
    with pytest.raises(UnknownObjectError, match="event 'ftevent-9' to list after"):
        logs.events(job.job_id, after="ftevent-9")


def test_checkpoints_are_told_newest_first_page_by_page(data: DataFolder) -> None:
    logs, job = data.job_logs, add(data.jobs)
    first, second = (
        logs.add_checkpoint(job.job_id, VersionId(f"a@{number}"), number * 10, {"loss": 1.5})
        for number in (1, 2)
    )
    assert (first.version, first.step, first.metrics) == ("a@1", 10, {"loss": 1.5})
    assert logs.checkpoints(job.job_id).items == (second, first)
    assert logs.checkpoints(job.job_id, after=second.checkpoint_id).items == (first,)


def test_last_events_of_an_ended_job_are_kept(data: DataFolder) -> None:
    logs, job = data.job_logs, add(data.jobs)
    data.jobs.change(job.job_id, status=JobStatus.SUCCEEDED)
    event = logs.add_event(job.job_id, "info", "succeeded")
    assert logs.events(job.job_id).items == (event,)


def test_log_of_a_job_keeps_its_latest_entries(tmp_path: Path) -> None:
    database = Database(tmp_path / "collm.db")
    jobs = JobStore(database, now_s=lambda: 0.0)
    logs = JobLogs(database, max_entries=3, now_s=lambda: 0.0)
    job, other = add(jobs), add(jobs, "b")
    logs.add_event(other.job_id, "info", "other")
    for number in range(5):
        logs.add_event(job.job_id, "info", str(number))
        logs.add_checkpoint(job.job_id, VersionId(f"a@{number}"), number, {})
    assert [event.message for event in logs.events(job.job_id).items] == ["4", "3", "2"]
    assert [point.step for point in logs.checkpoints(job.job_id).items] == [4, 3, 2]
    assert [event.message for event in logs.events(other.job_id).items] == ["other"]
    database.close()
