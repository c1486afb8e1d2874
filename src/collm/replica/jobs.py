"""The jobs that train here, and what their rows in the data folder say; loop thread only."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from collm.errors import StateError
from collm.gate.trial import TrialReport
from collm.lora.store import AdapterStore
from collm.metrics.exporter import ReplicaMetrics
from collm.replica.archive import Archive
from collm.replica.inbox import AddJob, CancelJob, PauseJob, ResumeJob, tell
from collm.replica.job_progress import HeldOut, JobProgress, Quality, checkpoint_metrics
from collm.replica.swap import Cause, Swap
from collm.store.data_folder import DataFolder
from collm.store.job_logs import EventKind, EventLevel
from collm.store.jobs import JobRecord, JobStatus
from collm.training.base_version import BaseVersion
from collm.training.events import TrainReport
from collm.training.trainer import Trainer
from collm.types import BASE, Evaluation, LearningState, VersionId

_log = logging.getLogger(__name__)


class JobDesk:
    """Owns which jobs train, and writes what becomes of them.

    Args:
        trainer: Trains them.
        adapters: Names of adapters that learn can be asked for before their first version.
        archive: Writes rows.
        metrics: Counts steps.
        on_change: Called when a job came, rests or ended, before whoever asked for it is told and
            before its row says so.
    """

    def __init__(
        self,
        trainer: Trainer,
        adapters: AdapterStore,
        archive: Archive,
        metrics: ReplicaMetrics,
        on_change: Callable[[], None],
    ) -> None:
        self._trainer = trainer
        self._adapters = adapters
        self._archive = archive
        self._metrics = metrics
        self._on_change = on_change
        self._progress: dict[str, JobProgress] = {}
        self._finishing: set[str] = set()

    def is_training(self, adapter: str) -> bool:
        """Return whether an adapter has a job, paused ones included."""
        return adapter in self._trainer.adapters

    def active(self, adapter: str) -> VersionId | None:
        """Return the adapter's active version, if it has one."""
        return self._adapters.active(adapter)

    def has(self, adapter: str, job_id: str) -> bool:
        """Return whether this is the adapter's job."""
        return self.is_training(adapter) and self._progress[adapter].job_id == job_id

    @property
    def finishing(self) -> tuple[str, ...]:
        """Adapters whose jobs took all their steps and wait for ``finish``."""
        return tuple(self._finishing)

    def job_id(self, adapter: str) -> str:
        """Return the id of the adapter's job, or of its last one."""
        return self._progress[adapter].job_id

    def add(self, message: AddJob) -> None:
        """Train a job from now on, from what is served now if that changed since it was built."""
        record, job = message.record, message.job
        adapter = record.adapter
        self._adapters.announce(adapter)
        self._trainer.add(job)
        is_paused = record.status is JobStatus.PAUSED
        self._progress[adapter] = progress = JobProgress(
            record.job_id,
            record.num_trained_tokens,
            status=JobStatus.PAUSED if is_paused else JobStatus.RUNNING,
            step=job.num_steps,
            result=record.result,
        )
        active = self._adapters.active(adapter)
        if active != message.base:
            self._redirect(adapter, lambda: self._restart(adapter, active))
        if is_paused:
            self._trainer.pause(adapter)
        self._metrics.job_began(adapter)
        self._changed()
        if not is_paused:
            self._change(progress, status=JobStatus.RUNNING)
        begins = f"goes on at step {job.num_steps}" if job.num_steps else "begins"
        self.note(adapter, "info", f"training {begins}")
        if record.started_at_s is None:  # otherwise they were told already
            for text in message.warnings:
                self.note(adapter, "warn", text)

    def cancel(self, message: CancelJob) -> None:
        """End a job before its time; the reply comes when that is on disk."""
        assert self.has(message.adapter, message.job_id)
        self._end(message.adapter, JobStatus.CANCELLED, reply=message.reply)

    def cancel_unstarted(self, message: CancelJob) -> None:
        """End a job that does not train here, unless it has ended; the reply comes then."""
        self._archive.write(
            lambda data: data.jobs.change(message.job_id, status=JobStatus.CANCELLED),
            lambda outcome: tell(message.reply, outcome),
        )

    def pause(self, message: PauseJob) -> None:
        """Note that a job rests; the reply comes when that is on disk."""
        self._set_status(message, JobStatus.PAUSED)

    def resume(self, message: ResumeJob) -> None:
        """Let a job that rests go on; the reply comes when that is on disk."""
        if self.has(message.adapter, message.job_id):
            self._trainer.resume(message.adapter)
        self._set_status(message, JobStatus.RUNNING)

    def count_step(self, report: TrainReport) -> None:
        """Count an optimizer step."""
        progress = self._progress[report.adapter]
        progress.step, progress.done_share = report.step, report.done_share
        progress.num_tokens += report.num_tokens
        progress.num_step_tokens = report.num_tokens
        progress.num_trained_tokens += report.num_tokens
        progress.num_samples += report.num_samples
        progress.loss = report.loss
        if report.was_skipped:
            progress.num_skipped += 1
            _log.warning("%s: step %d had a non-finite gradient", report.adapter, report.step)
        self._metrics.training_step(
            report.adapter,
            report.num_tokens,
            report.loss,
            report.gradient,
            was_skipped=report.was_skipped,
        )

    def measured(self, adapter: str, shadow: HeldOut, active: HeldOut) -> None:
        """Note what the shadow and what is served came to on held-out samples."""
        progress = self._progress[adapter]
        progress.shadow = shadow
        self._metrics.measured(adapter, shadow.loss, shadow.exact_share)
        self._measured_active(progress, adapter, active)

    def evaluated(self, adapter: str, loss: float, num_samples: int, *, tokens_since: int) -> None:
        """Note a point of the adapter's curve; one whose loss is not finite is none.

        Args:
            adapter: Its name.
            loss: Held-out loss, nats per token.
            num_samples: Held-out samples behind it.
            tokens_since: Tokens trained on since the measured parameters came about.
        """
        totals = self._metrics.totals.adapters.get(adapter)
        num_tokens = 0 if totals is None else totals.num_trained_tokens
        if math.isfinite(loss) and num_samples:
            self._progress[adapter].evaluation = Evaluation(
                num_tokens=max(0, num_tokens - tokens_since), loss=loss, num_samples=num_samples
            )

    def tokens_since(self, adapter: str, step: int) -> int:
        """Return about how many tokens were trained on since a step, which all are alike."""
        progress = self._progress[adapter]
        return max(0, progress.step - step) * progress.num_step_tokens

    def judged(self, adapter: str, report: TrialReport) -> None:
        """Count a verdict on a candidate of the job."""
        self._metrics.judged(adapter, report.verdict, report.num_samples)

    def saved(self, adapter: str) -> None:
        """Note that the job's state is on disk; any thread."""
        self._metrics.checkpoint_saved(adapter)

    def save_progress(self, adapter: str) -> None:
        """Write how far a job is, as its checkpoint has it."""
        progress = self._progress[adapter]
        self._change(progress, num_trained_tokens=progress.num_trained_tokens)

    def note(
        self,
        adapter: str,
        level: EventLevel,
        text: str,
        kind: EventKind = "message",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Write an event of the adapter's job."""
        job_id = self._progress[adapter].job_id
        self._archive.write(lambda store: store.job_logs.add_event(job_id, level, text, kind, data))

    def follow(self, swap: Swap) -> None:
        """Let training go on from what is served now; if it cannot, serving goes on alone."""
        adapter = swap.adapter
        if adapter in self._progress:
            self._progress[adapter].active = None  # it was of the version before
        if not self.is_training(adapter):
            return
        match swap.cause:
            case Cause.LEARNED:
                self._learned(swap)
            case Cause.BROUGHT:
                old, new = swap.previous_state, swap.state
                assert new is not None
                self._redirect(adapter, lambda: self._trainer.rebase(adapter, old, new))
            case Cause.RETURNED:
                self._redirect(adapter, lambda: self._trainer.reset(adapter, swap.state))
        text = f"{swap.version} is active ({swap.cause.value}); before: {swap.previous or BASE}"
        self.note(adapter, "info", text)

    def begin_finish(self, adapter: str) -> None:
        """Note that a job took all its steps; what it found better may still be on its way."""
        self._finishing.add(adapter)

    def finish(self, adapter: str) -> None:
        """End a job that took all its steps."""
        self._end(adapter, JobStatus.SUCCEEDED)

    def fail(self, adapter: str, error: Exception) -> None:
        """Go on without an adapter's training; what it has published stays."""
        _log.error("training of %s failed and has ended", adapter, exc_info=error)
        text = f"{type(error).__name__}: {error}"
        self._progress[adapter].error = text
        self.note(adapter, "error", text)
        self._end(adapter, JobStatus.FAILED, error={"code": "training_failed", "message": text})

    def snapshot(self) -> dict[str, dict[str, object]]:
        """Return each adapter's progress, ready for JSON."""
        return {adapter: progress.snapshot() for adapter, progress in self._progress.items()}

    def qualities(self) -> dict[str, Quality]:
        """Return the quality of what is served of each adapter, as far as it was measured."""
        found = ((adapter, progress.quality()) for adapter, progress in self._progress.items())
        return {adapter: quality for adapter, quality in found if quality is not None}

    def learning(self) -> dict[str, LearningState]:
        """Return how each adapter learns whose job is not paused."""
        trainer = self._trainer
        return {
            adapter: LearningState(
                tokens_per_step=trainer.config(adapter).tokens_per_step,
                micro_batch_tokens=trainer.config(adapter).micro_batch_tokens,
                is_joint=trainer.learns_together(adapter),
                evaluation=self._progress[adapter].evaluation,
            )
            for adapter in trainer.adapters
            if not trainer.is_paused(adapter)
        }

    def _changed(self) -> None:
        """Show which jobs there are now."""
        statuses = (self._progress[adapter].status for adapter in self._trainer.adapters)
        self._metrics.set_jobs(Counter(str(status) for status in statuses))
        self._on_change()

    def _learned(self, swap: Swap) -> None:
        """Write the checkpoint that a promoted copy of the shadow is."""
        progress = self._progress[swap.adapter]
        progress.result = swap.version
        numbers = dict(swap.numbers)
        if (loss := numbers.get("candidate_loss")) is not None:
            active = HeldOut(
                loss, numbers.get("candidate_error"), numbers.get("candidate_exact_match")
            )
            self._measured_active(progress, swap.adapter, active)
        step = int(numbers.get("step", progress.step))
        job_id, version = progress.job_id, swap.version
        metrics = checkpoint_metrics(numbers, progress.loss)
        self._archive.write(
            lambda data: data.job_logs.add_checkpoint(job_id, version, step, metrics)
        )
        self._change(progress, result=version)

    def _measured_active(self, progress: JobProgress, adapter: str, active: HeldOut) -> None:
        progress.active = active
        self._metrics.measured_active(adapter, active.loss, active.exact_share)

    def _restart(self, adapter: str, active: VersionId | None) -> None:
        state = None if active is None else self._adapters.state(active)
        if self._trainer.learns_together(adapter):
            base = None if state is None else BaseVersion(version=active, state=state)
            self._trainer.revert(adapter, base)
        else:
            self._trainer.reset(adapter, state)

    def _redirect(self, adapter: str, change: Callable[[], None]) -> None:
        try:
            change()
        except Exception as error:
            self.fail(adapter, error)

    def _set_status(self, message: PauseJob | ResumeJob, status: JobStatus) -> None:
        adapter = message.adapter
        if not self.has(adapter, message.job_id):
            text = f"job {message.job_id} is not being trained"
            tell(message.reply, StateError(text, code="job_not_running"))
            return
        progress = self._progress[adapter]
        progress.status = status
        self._changed()
        self.note(adapter, "info", f"the job is {status}")
        self._change(progress, message.reply, status=status)

    def _end(
        self,
        adapter: str,
        status: JobStatus,
        *,
        error: Mapping[str, Any] | None = None,
        reply: "Future[JobRecord] | None" = None,
    ) -> None:
        progress = self._progress[adapter]
        progress.status = status
        self._finishing.discard(adapter)
        self._trainer.remove(adapter)
        self._adapters.retract(adapter)
        self._metrics.job_ended(adapter, status)
        self._changed()
        self.note(adapter, "info", f"the job has {_ENDED[status]} at step {progress.step}")
        tokens = progress.num_trained_tokens
        self._change(progress, reply, status=status, num_trained_tokens=tokens, error=error)
        # Marked with the job's id, it would not be taken up by another; it is of no use any more.
        self._archive.write(lambda data: data.checkpoints.discard(adapter))

    def _change(
        self, progress: JobProgress, reply: "Future[JobRecord] | None" = None, **changes: Any
    ) -> None:
        job_id = progress.job_id

        def action(data: DataFolder) -> JobRecord:
            return data.jobs.change(job_id, **changes)

        self._archive.write(action, lambda outcome: tell(reply, outcome))


_ENDED = {
    JobStatus.SUCCEEDED: "succeeded",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "been cancelled",
}
