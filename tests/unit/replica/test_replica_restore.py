"""What a process takes up again of what the data folder says."""

import pytest

from collm.gate.trial import Verdict
from collm.replica.restore import restore_results, restore_watches
from collm.store.data_folder import DataFolder
from collm.store.jobs import JobStatus
from collm.types import VersionId

BETTER = {"verdict": Verdict.BETTER.value}


class NotedWatches:
    """Notes by what decision an adapter is served as it is."""

    def __init__(self):
        self.resumed = []

    def resume(self, decision):
        self.resumed.append((decision.version, decision.numbers))


def promote(data, adapter, *labels, numbers, metadata=None):
    for label in labels:
        data.versions.publish(
            adapter,
            label,
            digest=label,
            base_digest="b",
            rank=4,
            metadata=metadata or {},
            write=lambda _: None,
        )
        data.decisions.promote(VersionId(f"{adapter}@{label}"), "why", numbers)


def test_what_was_found_better_is_watched_again_whatever_became_of_its_job(tmp_path):
    watches = NotedWatches()
    with DataFolder(tmp_path, max_versions=5, now_s=lambda: 0.0) as data:
        promote(data, "learned", "1", "2", numbers=BETTER)
        data.decisions.refuse("learned", None, "worse", {"verdict": "worse"})
        promote(data, "imported", "1", numbers={})
        promote(data, "taken-back", "1", "2", numbers=BETTER)
        data.decisions.rollback(VersionId("taken-back@1"), "worse", {"evidence": 120.0})
        restore_watches(watches, data)
    assert watches.resumed == [
        ("imported@1", {}),
        ("learned@2", BETTER),
        ("taken-back@1", {"evidence": 120.0}),
    ]


STEP = BETTER | {"step": 40, "candidate_loss": 1.5}


def add_job(data, adapter):
    job = data.jobs.add(adapter=adapter, settings={}, is_continuous=True)
    return data.jobs.change(job.job_id, status=JobStatus.RUNNING)


def made(data, job):
    """Return what a job's row names as its last version, and its checkpoints, newest first."""
    logged = data.job_logs.checkpoints(job.job_id).items
    return data.jobs.get(job.job_id).result, [(one.version, one.step) for one in logged]


def test_version_whose_promotion_is_on_record_is_its_jobs_though_the_process_was_killed_then(
    tmp_path,
):
    with DataFolder(tmp_path, max_versions=5, now_s=lambda: 0.0) as data:
        job = add_job(data, "a")
        promote(data, "a", "1", numbers=STEP)
    for _ in range(2):  # what is noted once stays so
        with DataFolder(tmp_path, max_versions=5, now_s=lambda: 1.0) as data:
            restore_results(data)
            assert made(data, job) == ("a@1", [("a@1", 40)])
            (checkpoint,) = data.job_logs.checkpoints(job.job_id).items
            assert checkpoint.metrics["full_valid_loss"] == 1.5


def test_checkpoint_that_was_noted_before_the_process_was_killed_is_not_noted_twice(tmp_path):
    with DataFolder(tmp_path, max_versions=5, now_s=lambda: 0.0) as data:
        job = add_job(data, "a")
        promote(data, "a", "1", numbers=STEP)
        data.job_logs.add_checkpoint(job.job_id, VersionId("a@1"), 40, {})
        restore_results(data)
        assert made(data, job) == ("a@1", [("a@1", 40)])


@pytest.mark.parametrize("case", ["asked for", "of a round", "before the job", "rolled back"])
def test_version_that_a_job_did_not_make_is_not_noted_as_its_own(tmp_path, case):
    now_s = 0.0
    with DataFolder(tmp_path, max_versions=5, now_s=lambda: now_s) as data:
        if case != "before the job":
            job = add_job(data, "a")
        if case == "rolled back":
            promote(data, "a", "1", "2", numbers=STEP)
            data.decisions.rollback(VersionId("a@1"), "worse", {"evidence": 120.0})
        else:
            metadata = {"round": "1"} if case == "of a round" else {}
            numbers = {} if case == "asked for" else STEP
            promote(data, "a", "1", numbers=numbers, metadata=metadata)
        if case == "before the job":
            now_s = 1.0
            job = add_job(data, "a")
        restore_results(data)
        assert made(data, job) == (None, [])
