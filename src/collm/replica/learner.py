"""From training's events to published, promoted versions."""

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from collm.clock import Clock
from collm.errors import AdapterError, CollmError
from collm.lora.state import AdapterState
from collm.lora.store import AdapterStore
from collm.metrics.exporter import ReplicaMetrics
from collm.replica.archive import Archive
from collm.replica.inbox import PromotionFailed, Published, PublishFailed, Rollback, tell
from collm.training.events import HeldOutReport, TrainingEvent, TrainingSnapshot, TrainReport
from collm.training.trainer import Trainer
from collm.types import VersionId, VersionInfo

_log = logging.getLogger(__name__)

_RETRY_S = 30.0
"""Time until the next attempt after the data folder could not be written."""


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
    error: str | None = None
    """Why the adapter learns no more."""
    not_before_s: float = -math.inf
    """No candidate is handed to the archive earlier."""
    candidate: HeldOutReport | None = None
    """Better than what is served, and not handed to the archive yet; a newer one replaces it."""
    publishing: HeldOutReport | None = None
    """The candidate that the archive is writing."""
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
            staged = progress.staged
            if staged is not None and not progress.is_recording and now_s >= progress.not_before_s:
                self._stage(progress, staged)

    def published(self, message: Published) -> None:
        """Stage a version that is on disk, as soon as a slot is free."""
        progress = self._progress.setdefault(message.adapter, _Progress())
        if message.is_local and not _take_publishing(progress, message.state):
            _refuse(message, "the adapter was rolled back")
        elif message.version == self._adapters.active(message.adapter):
            tell(message.reply, self._info(message.version))
        elif progress.is_recording:
            _refuse(message, "another version of the adapter is being promoted; try again")
        else:
            if progress.staged is not None:
                _refuse(progress.staged, "a newer version replaced it before a slot was free")
            progress.staged = message
            self._stage(progress, message)

    def publish_failed(self, message: PublishFailed) -> None:
        """Keep a candidate that could not be written for another attempt, unless it is outdated."""
        progress = self._progress[message.adapter]
        report = progress.publishing
        if _take_publishing(progress, message.state):
            progress.candidate = progress.candidate or report
            progress.not_before_s = self._clock.now_s() + _RETRY_S

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
        progress.not_before_s = self._clock.now_s() + self._min_promotion_interval_s
        if message.is_local:
            progress.active_loss = message.numbers["held_out_loss"]
        self._metrics.promoted(message.adapter, message.version)
        _log.info("%s is active", message.version)
        if not message.is_local:
            progress.candidate = None
            self._redirect(
                message.adapter,
                lambda: self._trainer.rebase(message.adapter, old, message.state),
            )
        self._on_swap()
        tell(message.reply, self._info(message.version))

    def promotion_failed(self, message: PromotionFailed) -> None:
        """Leave things as they are: what is not on record is not served."""
        progress = self._progress[message.published.adapter]
        progress.is_recording = False
        if progress.staged is not message.published:
            return
        progress.not_before_s = self._clock.now_s() + _RETRY_S
        if not message.published.is_local:
            progress.staged = None
            _refuse(message.published, f"the decision could not be written: {message.error}")

    def roll_back(self, message: Rollback) -> None:
        """Return to the version before, in serving at once and in training with it."""
        try:
            version = self._adapters.rollback(message.adapter)
        except CollmError as error:
            tell(message.reply, error)
            return
        progress = self._progress.setdefault(message.adapter, _Progress())
        progress.candidate = progress.publishing = None
        if progress.staged is not None:
            _refuse(progress.staged, "the adapter was rolled back")
            progress.staged = None
        self._metrics.promoted(message.adapter, version)
        _log.info("%s is active again", version)
        state = self._adapters.state(version)
        self._redirect(message.adapter, lambda: self._trainer.reset(message.adapter, state))
        self._on_swap()
        info = self._info(version)

        def then(error: Exception | None) -> None:
            note = f"{version} is active again, but a restart would undo that: {error}"
            tell(message.reply, info if error is None else CollmError(note))

        self._archive.record_rollback(message.adapter, version, then)

    def save(self) -> None:
        """Hand every job's state to the archive, for the replica is about to end."""
        self.handle(self._trainer.snapshot_now())

    def training_failed(self, adapter: str, error: Exception) -> None:
        """Go on without an adapter's training; what it has published stays."""
        _log.error("training of %s failed and has ended", adapter, exc_info=error)
        self._trainer.remove(adapter)
        self._progress[adapter].error = f"{type(error).__name__}: {error}"

    def snapshot(self) -> dict[str, dict[str, object]]:
        """Return each adapter's progress, ready for JSON."""
        return {
            adapter: {
                "active": self._adapters.active(adapter),
                "step": progress.step,
                "training_tokens": progress.num_tokens,
                "training_samples": progress.num_samples,
                "training_loss": _finite(progress.loss),
                "held_out_loss": _finite(progress.held_out_loss),
                "active_held_out_loss": _finite(progress.active_loss),
                "promotions": progress.num_promotions,
                "skipped_steps": progress.num_skipped,
                "error": progress.error,
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
        is_busy = progress.publishing is not None or progress.is_recording
        if is_busy or now_s < progress.not_before_s:
            return
        progress.candidate, progress.publishing = None, report
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
                message.adapter,
                message.version,
                message.state,
                dict(message.metadata),
                message.digest,
            )
        except CollmError as error:
            progress.staged = None
            _log.warning("%s cannot be served: %s", message.version, error)
            tell(message.reply, error)
            return
        if is_staged:
            progress.is_recording = True
            reason = "better on held-out samples" if message.is_local else "asked for"
            self._archive.record_promotion(message, reason)

    def _redirect(self, adapter: str, change: Callable[[], None]) -> None:
        """Let training go on from what is served now; if it cannot, serving goes on alone."""
        if adapter not in self._trainer.adapters:
            return
        try:
            change()
        except Exception as error:
            self.training_failed(adapter, error)

    def _info(self, version: VersionId) -> VersionInfo:
        return next(info for info in self._adapters.infos() if info.version == version)


def _finite(loss: float | None) -> float | None:
    """Return a loss as JSON can carry it."""
    return loss if loss is not None and math.isfinite(loss) else None


def _take_publishing(progress: _Progress, state: AdapterState) -> bool:
    """Note that the archive is done with ``state``; return whether it is still wanted."""
    if progress.publishing is None or progress.publishing.candidate is not state:
        return False
    progress.publishing = None
    return True


def _refuse(message: Published, reason: str) -> None:
    _log.info("%s was not promoted: %s", message.version, reason)
    tell(message.reply, AdapterError(f"{message.version} was not promoted: {reason}"))
