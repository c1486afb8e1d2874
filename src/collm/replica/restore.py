"""What the data folder says was going on when the process last ended, taken up again."""

import logging
from collections.abc import Sequence

from collm.errors import AdapterError, ConfigError, DataError
from collm.gate.trial import is_proven
from collm.lora.store import AdapterStore
from collm.metrics.exporter import ReplicaMetrics
from collm.replica.courtesy import Courtesy
from collm.replica.fine_tuning import fail_job
from collm.replica.inbox import AddJob
from collm.replica.job_builder import JobBuilder
from collm.replica.job_progress import checkpoint_metrics
from collm.replica.job_settings import configured_settings
from collm.replica.jobs import JobDesk
from collm.replica.library import Library
from collm.replica.watch_desk import WatchDesk
from collm.store.data_folder import DataFolder
from collm.store.decisions import Decision, DecisionKind
from collm.store.jobs import JobRecord, JobStatus
from collm.training.base_version import is_of_round
from collm.training.config import JobConfig
from collm.types import VersionId

_log = logging.getLogger(__name__)
_LEFT = "left_configuration"
"""Code of the error of a job that the configuration file names no longer."""


def restore_versions(
    adapters: AdapterStore, data: DataFolder, library: Library, metrics: ReplicaMetrics
) -> None:
    """Serve what was active, then what was pinned, and hold what could be rolled back to."""
    held, active, first = data.decisions.held(), data.decisions.active(), data.decisions.first()
    for num_done, (adapter, version) in enumerate(active.items()):
        num_needed = len(active) - num_done
        if adapter in held and adapters.num_free_slots > num_needed:
            _restore(adapters, library, adapter, held[adapter])
        _restore(adapters, library, adapter, version)
        if (serving := adapters.active(adapter)) is not None:
            metrics.serves(adapter, serving)
        if adapter in first:
            adapters.set_first(adapter, first[adapter])
    for version in data.pins.all():
        _keep(adapters, library, version)


def _restore(adapters: AdapterStore, library: Library, adapter: str, version: VersionId) -> None:
    try:
        published, state = library.load(version)
        metadata, digest = dict(published.metadata), published.digest
        if not adapters.try_stage(adapter, version, state, metadata, digest):
            raise AdapterError("no slot is free; raise lora.num_slots")
        adapters.promote(version)
    except AdapterError as error:
        serving = adapters.active(adapter) or "nothing"
        _log.error("%s is not served, %s in its place: %s", version, serving, error)


def _keep(adapters: AdapterStore, library: Library, version: VersionId) -> None:
    try:
        published, state = library.load(version)
        metadata, digest = dict(published.metadata), published.digest
        if not adapters.try_keep(published.adapter, version, state, metadata, digest):
            raise AdapterError("no slot is free; raise lora.num_slots")
    except AdapterError as error:
        _log.error("%s is pinned and not served: %s", version, error)


def restore_watches(watches: WatchDesk, data: DataFolder) -> None:
    """Go on watching what was found better, whatever became of the job that made it.

    Jobs that train on take the watches over.
    """
    for decision in data.decisions.standing().values():
        watches.resume(decision)


def restore_results(data: DataFolder) -> None:
    """Note in jobs' rows which version they made last, where the process ended too early for it.

    A promotion is on record before it is served, and what it means for its job only then.
    """
    standing = data.decisions.standing()
    for record in data.jobs.unfinished():
        decision = standing.get(record.adapter)
        if decision is None or not _was_made_by(data, record, decision):
            continue
        version = decision.version
        assert version is not None, "it was promoted"
        if version != record.result:
            logged = data.job_logs.checkpoints(record.job_id, limit=1).items
            if not logged or logged[0].version != version:
                step, metrics = int(decision.numbers["step"]), checkpoint_metrics(decision.numbers)
                data.job_logs.add_checkpoint(record.job_id, version, step, metrics)
            data.jobs.change(record.job_id, result=version)


def _was_made_by(data: DataFolder, record: JobRecord, decision: Decision) -> bool:
    """Return whether a decision promotes what a job learned by itself."""
    is_learned = decision.kind is DecisionKind.PROMOTION and is_proven(decision.numbers)
    if not is_learned or decision.version is None or decision.decided_at_s < record.created_at_s:
        return False
    return not is_of_round(data.versions.get(decision.version).metadata)


def restore_jobs(jobs: JobDesk, builder: JobBuilder, data: DataFolder) -> None:
    """Let every job that has not ended train on, paused ones after a while.

    Raises:
        ConfigError, DataError: A job of the configuration file cannot be trained; one of a client
            fails alone.
    """
    courtesy = Courtesy(is_busy=lambda: False)
    for record in data.jobs.unfinished():
        try:
            built = builder.build(record, courtesy)
        except Exception as error:
            if record.is_configured:
                if isinstance(error, DataError):
                    name = record.adapter
                    raise DataError(f"training.jobs: adapter {name!r}: {error}") from error
                raise
            _log.exception("job %s cannot be trained", record.job_id)
            fail_job(data, record, error)
        else:
            # A version that no slot was free for is what it goes on from all the same.
            base = None if jobs.active(record.adapter) is None else built.base
            jobs.add(AddJob(job=built.job, record=record, base=base, warnings=built.warnings))


def update_configured_jobs(data: DataFolder, configs: Sequence[JobConfig]) -> None:
    """Make the rows of jobs agree with the configuration file.

    A configured job that ended by itself, or was cancelled, stays so unless its settings change.

    Raises:
        ConfigError: A job of a client trains an adapter that the file names.
    """
    names = {config.adapter for config in configs}
    unfinished = {record.adapter: record for record in data.jobs.unfinished()}
    for record in unfinished.values():
        if record.is_configured and record.adapter not in names:
            error = {"code": _LEFT, "message": "it is no longer in training.jobs", "param": None}
            data.jobs.change(record.job_id, status=JobStatus.CANCELLED, error=error)
            data.checkpoints.discard(record.adapter)
    for config in configs:
        _update(data, config, unfinished.get(config.adapter))


def _update(data: DataFolder, config: JobConfig, record: JobRecord | None) -> None:
    settings = configured_settings(config)
    if record is not None:
        if not record.is_configured:
            raise ConfigError(
                f"training.jobs names {config.adapter!r}, which job {record.job_id} of a client "
                "trains; leave it out, or cancel that job first"
            )
        data.jobs.change(record.job_id, settings=settings)
        return
    last = _last_configured(data, config.adapter)
    if last is not None and last.settings == settings and _stays_ended(last):
        _log.info("job %s of %s has %s", last.job_id, config.adapter, last.status)
        return
    is_endless = config.total_steps is None and config.num_epochs is None
    data.jobs.add(
        adapter=config.adapter,
        settings=settings,
        is_continuous=is_endless,
        is_configured=True,
        status=JobStatus.QUEUED,
    )


def _stays_ended(record: JobRecord) -> bool:
    has_left = (record.error or {}).get("code") == _LEFT
    return record.status is not JobStatus.FAILED and not has_left


def _last_configured(data: DataFolder, adapter: str) -> JobRecord | None:
    after: str | None = None
    while True:
        page = data.jobs.list(after=after, limit=100)
        for record in page.items:
            if record.is_configured and record.adapter == adapter:
                return record
        if not page.has_more:
            return None
        after = page.items[-1].job_id
