"""What a process takes up again of what the data folder says."""

from collm.replica.restore import restore_watches
from collm.store.data_folder import DataFolder
from collm.store.jobs import JobStatus
from collm.types import VersionId


class NotedJobs:
    """Notes what is to be watched."""

    def __init__(self):
        self.watched = []

    def watch_again(self, adapter, version):
        self.watched.append((adapter, version))


def make(data, adapter, *labels, status, is_result=True):
    """Publish and promote versions, of which a job of the adapter's made the last, or none."""
    for label in labels:
        data.versions.publish(
            adapter, label, digest=label, base_digest="b", rank=4, metadata={}, write=lambda _: None
        )
        version = VersionId(f"{adapter}@{label}")
        data.decisions.promote(version, "better", {})
    job = data.jobs.add(adapter=adapter, settings={}, is_continuous=True)
    data.jobs.change(job.job_id, status=status, result=version if is_result else None)


def test_what_jobs_made_is_watched_again_whether_they_have_ended_or_not(tmp_path):
    jobs = NotedJobs()
    with DataFolder(tmp_path, max_versions=5, now_s=lambda: 0.0) as data:
        make(data, "ended", "1", "2", status=JobStatus.SUCCEEDED)
        make(data, "running", "1", status=JobStatus.RUNNING)
        make(data, "imported", "1", status=JobStatus.CANCELLED, is_result=False)
        make(data, "taken-back", "1", "2", status=JobStatus.CANCELLED)
        data.decisions.rollback(VersionId("taken-back@1"), "worse", {})
        restore_watches(jobs, data)
    assert jobs.watched == [("ended", "ended@2"), ("running", "running@1")]
