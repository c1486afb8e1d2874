import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collm.errors import AdapterError, StateError, UnknownObjectError
from collm.store.data_folder import DataFolder
from collm.store.jobs import JobRecord, JobStatus, JobStore
from collm.types import VersionId

ENDED = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataFolder]:
    times = iter(range(10, 10_000))
    with DataFolder(tmp_path, max_versions=2, now_s=lambda: float(next(times))) as opened:
        yield opened


@pytest.fixture
def store(data: DataFolder) -> JobStore:
    return data.jobs


def add(store: JobStore, adapter: str = "a", **options: Any) -> JobRecord:
    return store.add(adapter=adapter, settings={}, is_continuous=False, **options)


def test_added_job_is_found_as_it_was_given(data: DataFolder) -> None:
    files = [
        data.files.add(filename=name, purpose="fine-tune", content=b"", num_samples=0).file_id
        for name in ("train", "valid")
    ]
    job = data.jobs.add(
        adapter="a",
        settings={"rank": 8, "learning_rate": 1e-3, "method": {"type": "supervised"}},
        is_continuous=True,
        training_file=files[0],
        validation_file=files[1],
        metadata={"team": "é"},
        is_configured=True,
        status=JobStatus.QUEUED,
    )
    assert job == JobRecord(
        job_id=job.job_id,
        adapter="a",
        status=JobStatus.QUEUED,
        training_file=files[0],
        validation_file=files[1],
        settings={"rank": 8, "learning_rate": 1e-3, "method": {"type": "supervised"}},
        metadata={"team": "é"},
        is_continuous=True,
        is_configured=True,
        created_at_s=12.0,
        started_at_s=None,
        finished_at_s=None,
        num_trained_tokens=0,
        result=None,
        error=None,
    )
    assert len(job.job_id) == len("ftjob-") + 24
    assert data.jobs.get(job.job_id) == job


def test_job_without_files_starts_by_validating(store: JobStore) -> None:
    job = add(store)
    assert (job.status, job.training_file, job.metadata) == ("validating_files", None, {})
    assert (job.is_continuous, job.is_configured) == (False, False)


def test_second_job_of_an_adapter_is_refused_until_the_first_has_ended(store: JobStore) -> None:
    first = add(store)
    add(store, "b")
    with pytest.raises(StateError, match=f"has job {first.job_id} already") as caught:
        add(store)
    assert caught.value.code == "job_exists"
    store.change(first.job_id, status=JobStatus.CANCELLED)
    add(store)


def test_job_of_an_unknown_or_deleted_file_is_refused(data: DataFolder) -> None:
    with pytest.raises(UnknownObjectError, match="file 'file-9' does not exist"):
        add(data.jobs, training_file="file-9")
    gone = data.files.add(filename="x", purpose="fine-tune", content=b"", num_samples=0).file_id
    data.files.delete(gone)
    with pytest.raises(UnknownObjectError, match=f"file '{gone}' does not exist"):
        add(data.jobs, validation_file=gone)
    assert data.jobs.list().items == ()


def test_job_for_a_name_that_is_not_allowed_is_refused(store: JobStore) -> None:
    with pytest.raises(AdapterError, match="adapter name 'a/b' is not allowed"):
        add(store, "a/b")


def test_only_what_is_given_changes(store: JobStore) -> None:
    job = add(store)
    changed = store.change(job.job_id, num_trained_tokens=5, result=VersionId("a@1"))
    assert (changed.num_trained_tokens, changed.result) == (5, "a@1")
    assert (changed.status, changed.created_at_s) == (job.status, job.created_at_s)
    changed = store.change(job.job_id, num_trained_tokens=9)
    assert (changed.num_trained_tokens, changed.result) == (9, "a@1")
    assert store.change(job.job_id) == store.get(job.job_id) == changed


def test_job_is_dated_when_it_first_runs_and_when_it_ends(store: JobStore) -> None:
    job = add(store)
    assert (job.created_at_s, job.started_at_s, job.finished_at_s) == (10.0, None, None)
    started = store.change(job.job_id, status=JobStatus.RUNNING)
    assert started.started_at_s == 11.0
    store.change(job.job_id, status=JobStatus.PAUSED)
    again = store.change(job.job_id, status=JobStatus.RUNNING)
    assert (again.started_at_s, again.finished_at_s) == (11.0, None)
    ended = store.change(job.job_id, status=JobStatus.SUCCEEDED)
    assert (ended.started_at_s, ended.finished_at_s) == (11.0, 14.0)


def test_given_times_are_kept(store: JobStore) -> None:
    job = add(store)
    store.change(job.job_id, status=JobStatus.RUNNING, started_at_s=3.0)
    ended = store.change(job.job_id, status=JobStatus.FAILED, finished_at_s=4.0)
    assert (ended.started_at_s, ended.finished_at_s) == (3.0, 4.0)


@pytest.mark.parametrize("status", ENDED)
def test_ended_job_never_changes_again(store: JobStore, status: JobStatus) -> None:
    job = add(store)
    ended = store.change(job.job_id, status=status, error={"message": "no"})
    with pytest.raises(StateError, match=f"job {job.job_id} has ended: {status}") as caught:
        store.change(job.job_id, status=JobStatus.RUNNING)
    assert caught.value.code == "job_ended"
    assert store.get(job.job_id) == ended
    assert ended.error == {"message": "no"}


def test_ended_states_are_exactly_the_three(store: JobStore) -> None:
    assert tuple(status for status in JobStatus if status.has_ended) == ENDED


def test_unfinished_jobs_are_told_oldest_first(store: JobStore) -> None:
    jobs = [add(store, name) for name in "abcd"]
    store.change(jobs[1].job_id, status=JobStatus.FAILED)
    paused = store.change(jobs[2].job_id, status=JobStatus.PAUSED)
    assert store.unfinished() == (jobs[0], paused, jobs[3])


def test_unknown_job_is_named_by_every_method(store: JobStore) -> None:
    for use in (
        lambda: store.get("ftjob-9"),
        lambda: store.change("ftjob-9", status=JobStatus.RUNNING),
        lambda: store.list(after="ftjob-9"),
    ):
        with pytest.raises(UnknownObjectError, match="job 'ftjob-9' .*does not exist"):
            use()


def test_jobs_are_listed_newest_first_page_by_page(store: JobStore) -> None:
    jobs = [add(store, name) for name in "abcde"]
    page = store.list(limit=2)
    assert (page.items, page.has_more) == ((jobs[4], jobs[3]), True)
    page = store.list(after=jobs[1].job_id, limit=2)
    assert (page.items, page.has_more) == ((jobs[0],), False)


def test_jobs_are_listed_by_all_of_their_metadata(store: JobStore) -> None:
    one = add(store, "a", metadata={"team": "x", 'we\'re "odd".key': "1"})
    two = add(store, "b", metadata={"team": "x"})
    add(store, "c")
    assert store.list(metadata={"team": "x"}).items == (two, one)
    assert store.list(metadata={"team": "x", 'we\'re "odd".key': "1"}).items == (one,)
    assert store.list(metadata={"team": "y"}).items == ()
    assert store.list(metadata={"team": "x"}, after=two.job_id).items == (one,)


def test_one_of_many_threads_gets_the_job_of_an_adapter(store: JobStore) -> None:
    added: list[JobRecord] = []
    refused: list[StateError] = []

    def try_to_add() -> None:
        try:
            added.append(add(store))
        except StateError as error:
            refused.append(error)

    threads = [threading.Thread(target=try_to_add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(added), len(refused)) == (1, 7)
    assert store.unfinished() == tuple(added)


def test_jobs_survive_a_restart(data: DataFolder, tmp_path: Path) -> None:
    job = add(data.jobs)
    running = data.jobs.change(job.job_id, status=JobStatus.RUNNING)
    event = data.job_logs.add_event(job.job_id, "info", "started")
    data.close()
    with DataFolder(tmp_path, max_versions=2, now_s=lambda: 0.0) as reopened:
        assert reopened.jobs.unfinished() == (running,)
        assert reopened.job_logs.events(job.job_id).items == (event,)
