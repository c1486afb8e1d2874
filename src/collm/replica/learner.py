"""From training's events to published, promoted versions."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from collm.clock import Clock
from collm.errors import CollmError
from collm.lora.store import AdapterStore
from collm.metrics.exporter import ReplicaMetrics
from collm.replica.archive import Archive
from collm.replica.inbox import Published, Rollback
from collm.training.events import HeldOutReport, TrainingEvent, TrainingSnapshot, TrainReport
from collm.training.trainer import Trainer
from collm.types import VersionId, VersionInfo

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Progress:
    """What is known of one adapter's learning."""

    step: int = 0
    num_tokens: int = 0
    num_samples: int = 0
    loss: float | None = None
    held_out_loss: float | None = None
    active_loss: float | None = None
    num_promotions: int = 0
    num_skipped: int = 0
    promoted_at_s: float | None = None
    candidate: HeldOutReport | None = None
    """Better than what is served, and not handed to the archive yet; a newer one replaces it."""
    is_publishing: bool = False
    staged: Published | None = None
    """On disk, waiting for a slot or for its decision's record."""
    is_recording: bool = False
    """Whether the archive is writing the decision to promote ``staged``."""


class Learner:
    """Decides which candidates are published and when they are promoted; loop thread only.

    ::

        candidate ─► archive writes it ─► staged in a slot ─► archive writes the decision ─► flip
           │ newer one replaces it             │ no slot: tried again each step
    """

    def __init__(
        self,
        trainer: Trainer,
        adapters: AdapterStore,
        archive: Archive,
        metrics: ReplicaMetrics,
        clock: Clock,
        *,
        on_swap: Callable[[], None],
        min_promotion_interval_s: float,
        checkpoint_interval_s: float,
    ) -> None:
        """Publish what ``trainer`` finds better than what ``adapters`` serve.

        ``on_swap`` is called when another version is active, before whoever asked for it is told.
        """
        self._trainer = trainer
        self._adapters = adapters
        self._archive = archive
        self._metrics = metrics
        self._clock = clock
        self._on_swap = on_swap
        self._min_promotion_interval_s = min_promotion_interval_s
        self._checkpoint_interval_s = checkpoint_interval_s
        self._next_checkpoint_s = clock.now_s() + checkpoint_interval_s
        self._progress: dict[str, _Progress] = {name: _Progress() for name in trainer.adapters}

    def handle(self, events: Iterable[TrainingEvent]) -> None:
        """Take in what a quantum completed."""
        for event in events:
            match event:
                case TrainReport():
                    self._count_step(event)
                case HeldOutReport():
                    self._judge(event)
                case TrainingSnapshot():
                    self._archive.save_checkpoint(event)

    def tend(self) -> None:
        """Move on what waits for time, a slot, or the archive; called once per step."""
        now_s = self._clock.now_s()
        if now_s >= self._next_checkpoint_s:
            self._next_checkpoint_s = now_s + self._checkpoint_interval_s
            self._trainer.request_snapshots()
        for adapter, progress in self._progress.items():
            self._publish_candidate(adapter, progress, now_s)
            if progress.staged is not None and not progress.is_recording:
                self._stage(progress, progress.staged)

    def published(self, message: Published) -> None:
        """Stage a version that is on disk, as soon as a slot is free."""
        progress = self._progress.setdefault(message.adapter, _Progress())
        progress.is_publishing = False
        if progress.is_recording:
            _refuse(message, "another version of the adapter is being promoted; try again")
            return
        if progress.staged is not None:
            _refuse(progress.staged, "a newer version replaced it before a slot was free")
        progress.staged = message
        self._stage(progress, message)

    def promoted(self, message: Published) -> None:
        """Flip to a staged version whose promotion is on record, unless a rollback overtook it."""
        progress = self._progress[message.adapter]
        progress.is_recording = False
        if progress.staged is not message:
            return
        progress.staged = None
        before = self._adapters.active(message.adapter)
        old = None if before is None else self._adapters.state(before)
        self._adapters.promote(message.version)
        progress.num_promotions += 1
        progress.promoted_at_s = self._clock.now_s()
        self._metrics.promoted(message.adapter, message.version)
        _log.info("%s is active", message.version)
        if message.adapter in self._trainer.adapters and not message.is_local:
            progress.candidate = None
            self._trainer.rebase(message.adapter, old, message.state)
        self._on_swap()
        if message.reply is not None:
            message.reply.set_result(self._info(message.version))

    def roll_back(self, message: Rollback) -> None:
        """Return to the version before, in serving at once and in training with it."""
        try:
            version = self._adapters.rollback(message.adapter)
        except CollmError as error:
            message.reply.set_exception(error)
            return
        progress = self._progress.setdefault(message.adapter, _Progress())
        progress.candidate = None
        if progress.staged is not None:
            _refuse(progress.staged, "the adapter was rolled back")
            progress.staged = None
        self._metrics.promoted(message.adapter, version)
        _log.info("%s is active again", version)
        if message.adapter in self._trainer.adapters:
            self._trainer.reset(message.adapter, self._adapters.state(version))
        self._on_swap()
        info = self._info(version)
        self._archive.record_rollback(version, lambda: message.reply.set_result(info))

    def snapshot(self) -> dict[str, dict[str, object]]:
        """Return each adapter's progress, ready for JSON."""
        return {
            adapter: {
                "active": self._adapters.active(adapter),
                "step": progress.step,
                "training_tokens": progress.num_tokens,
                "training_samples": progress.num_samples,
                "training_loss": progress.loss,
                "held_out_loss": progress.held_out_loss,
                "active_held_out_loss": progress.active_loss,
                "promotions": progress.num_promotions,
                "skipped_steps": progress.num_skipped,
            }
            for adapter, progress in self._progress.items()
        }

    def _count_step(self, report: TrainReport) -> None:
        progress = self._progress[report.adapter]
        progress.step = report.step
        progress.num_tokens += report.num_tokens
        progress.num_samples += report.num_samples
        progress.loss = report.loss
        if report.was_skipped:
            progress.num_skipped += 1
            _log.warning("%s: step %d had a non-finite gradient", report.adapter, report.step)
        self._metrics.training_step(report.adapter, report.num_tokens, report.loss)

    def _judge(self, report: HeldOutReport) -> None:
        progress = self._progress[report.adapter]
        progress.held_out_loss = report.loss
        progress.active_loss = report.active_loss
        self._metrics.held_out(report.adapter, report.loss)
        if report.candidate is not None:
            progress.candidate = report

    def _publish_candidate(self, adapter: str, progress: _Progress, now_s: float) -> None:
        """Hand the latest candidate to the archive, if its time has come."""
        report = progress.candidate
        if report is None or report.candidate is None:
            return
        since_s = now_s - (progress.promoted_at_s or -self._min_promotion_interval_s)
        is_busy = progress.is_publishing or progress.staged is not None
        if is_busy or since_s < self._min_promotion_interval_s:
            return
        progress.candidate, progress.is_publishing = None, True
        numbers = {
            "held_out_loss": report.loss,
            "active_held_out_loss": report.active_loss,
            "num_held_out": report.num_samples,
            "step": report.step,
        }
        metadata = {key: str(value) for key, value in numbers.items()}
        self._archive.publish(adapter, report.candidate, metadata, numbers)

    def _stage(self, progress: _Progress, message: Published) -> None:
        try:
            is_staged = self._adapters.try_stage(
                message.adapter, message.version, message.state, dict(message.metadata)
            )
        except CollmError as error:
            progress.staged = None
            _log.warning("%s cannot be served: %s", message.version, error)
            if message.reply is not None:
                message.reply.set_exception(error)
            return
        if is_staged:
            progress.is_recording = True
            reason = "better on held-out samples" if message.is_local else "asked for"
            self._archive.record_promotion(message, reason)

    def _info(self, version: VersionId) -> VersionInfo:
        return next(info for info in self._adapters.infos() if info.version == version)


def _refuse(message: Published, reason: str) -> None:
    if message.reply is not None:
        message.reply.set_exception(CollmError(f"{message.version} was not promoted: {reason}"))
