"""From training's events to published, promoted versions and to what people can read about it."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from collm.clock import Clock
from collm.federated.allotment import Allotment
from collm.gate.trial import Verdict
from collm.replica.allotments import Allotments
from collm.replica.archive import Archive
from collm.replica.inbox import (
    AddJob,
    AddSamples,
    CancelJob,
    JobMessage,
    PauseJob,
    RemoveSample,
    ResumeJob,
    RoundMessage,
)
from collm.replica.job_progress import HeldOut
from collm.replica.jobs import JobDesk
from collm.replica.promotions import Promotions
from collm.replica.round_member import RoundMember
from collm.training.events import (
    BaselineReport,
    Compared,
    HeldOutReport,
    JobFinished,
    Regression,
    RoundEvent,
    RoundFailed,
    RoundTrained,
    ShadowReset,
    TrainingEvent,
    TrainingSnapshot,
    TrainReport,
)
from collm.training.trainer import Trainer

_log = logging.getLogger(__name__)

_REASONS = {
    Verdict.WORSE: "worse on held-out samples",
    Verdict.NOT_SHOWN: "not shown to be better on held-out samples",
    Verdict.SLICE_WORSE: "worse on a slice of the held-out samples",
    Verdict.NOT_FINITE: "its loss is not finite",
    Verdict.OVERTAKEN: "not on course to be shown better; a newer candidate takes its turn",
}


class Learner:
    """Passes on what training found to whom it concerns; loop thread only.

    Args:
        trainer: Trains the jobs.
        jobs: Keeps their rows and their progress.
        rounds: Has jobs train and compare for others.
        promotions: Takes what is better than what is served.
        archive: Writes refusals and checkpoints.
        allotments: Keeps what a coordinator allots.
        clock: Monotonic time.
        on_regression: Called with an adapter and the numbers that show that its active version does
            worse on live feedback than the one before.
        checkpoint_interval_s: Time between checkpoints.
    """

    def __init__(
        self,
        trainer: Trainer,
        jobs: JobDesk,
        rounds: RoundMember,
        promotions: Promotions,
        archive: Archive,
        allotments: Allotments,
        clock: Clock,
        *,
        on_regression: Callable[[str, Mapping[str, Any]], None],
        checkpoint_interval_s: float,
    ) -> None:
        self._trainer = trainer
        self._jobs = jobs
        self._rounds = rounds
        self._promotions = promotions
        self._archive = archive
        self._allotments = allotments
        self._clock = clock
        self._on_regression = on_regression
        self._checkpoint_interval_s = checkpoint_interval_s
        self._next_checkpoint_s = clock.now_s() + checkpoint_interval_s

    def handle(self, events: Iterable[TrainingEvent]) -> None:
        """Take in what a quantum completed."""
        for event in events:
            match event:
                case TrainReport():
                    self._jobs.count_step(event)
                case BaselineReport():
                    self._note_baseline(event)
                case HeldOutReport():
                    self._judge(event)
                case TrainingSnapshot():
                    self._save(event)
                case ShadowReset():
                    self._shadow_reset(event)
                case Regression():
                    self._on_regression(event.adapter, event.numbers)
                case JobFinished():
                    self._jobs.begin_finish(event.adapter)
                case RoundTrained() | RoundFailed() | Compared():
                    self._hand_on(event)

    def receive_round(self, message: RoundMessage) -> None:
        """Carry out what a coordinator asks."""
        self.handle(self._rounds.receive(message))

    def follow(self, allotment: Allotment) -> None:
        """Carry out what a coordinator allots."""
        self._allotments.receive(allotment)

    def receive(self, message: JobMessage) -> None:
        """Carry out a message about a job."""
        match message:
            case AddJob():
                self._jobs.add(message)
            case CancelJob(adapter=adapter, job_id=job_id) if self._jobs.has(adapter, job_id):
                self._promotions.withdraw(adapter)
                self._jobs.cancel(message)
            case CancelJob():
                self._jobs.cancel_unstarted(message)
            case PauseJob():
                self._pause(message)
            case ResumeJob():
                self._jobs.resume(message)
            case AddSamples(adapter, samples):
                self._trainer.add_samples(adapter, samples)
            case RemoveSample(adapter, sample_id):
                self._trainer.remove_sample(adapter, sample_id)

    def tend(self) -> None:
        """Move on what waits; called once per step."""
        now_s = self._clock.now_s()
        if now_s >= self._next_checkpoint_s:
            self._next_checkpoint_s = now_s + self._checkpoint_interval_s
            self._trainer.request_snapshots()
        self._promotions.tend()
        self._allotments.tend()
        self.handle(self._rounds.tend())
        for adapter in self._jobs.finishing:
            if self._promotions.is_settled(adapter):
                self._jobs.finish(adapter)

    def save(self) -> None:
        """Hand every job's state to the archive, for the replica is about to end."""
        self.handle(self._trainer.snapshot_now())

    def training_failed(self, adapter: str, error: Exception) -> None:
        """Go on without an adapter's training, or watch; what it has published stays."""
        if self._trainer.is_watching:
            _log.error("the watch over %s failed and has ended", adapter, exc_info=error)
            self._trainer.unwatch(adapter)
        else:
            self._jobs.fail(adapter, error)

    def snapshot(self) -> dict[str, dict[str, object]]:
        """Return what became of each adapter here, ready for JSON."""
        learning = self._jobs.snapshot()
        adapters = dict.fromkeys([*learning, *self._promotions.adapters()])
        return {
            adapter: {
                "active": self._jobs.active(adapter),
                "promotions": self._promotions.num_promotions(adapter),
                **learning.get(adapter, {}),
            }
            for adapter in adapters
        }

    def _save(self, snapshot: TrainingSnapshot) -> None:
        adapter, jobs = snapshot.adapter, self._jobs
        self._archive.save_checkpoint(snapshot, jobs.job_id(adapter), lambda: jobs.saved(adapter))
        jobs.save_progress(adapter)

    def _pause(self, message: PauseJob) -> None:
        if self._jobs.has(message.adapter, message.job_id):
            # Counted before anybody reads that the job rests.
            self.handle(self._trainer.pause(message.adapter))
        self._jobs.pause(message)

    def _note_baseline(self, event: BaselineReport) -> None:
        side = HeldOut(event.loss, event.error, event.exact.share)
        self._jobs.measured(event.adapter, side, side)
        self._jobs.evaluated(event.adapter, event.loss, event.num_samples, tokens_since=0)

    def _judge(self, event: HeldOutReport) -> None:
        report = event.report
        tokens_since = self._jobs.tokens_since(event.adapter, event.step)
        self._jobs.measured(
            event.adapter,
            HeldOut(report.candidate_loss, report.candidate_error, report.candidate_exact.share),
            HeldOut(report.active_loss, report.active_error, report.active_exact.share),
        )
        self._jobs.evaluated(
            event.adapter, event.loss, event.num_samples, tokens_since=tokens_since
        )
        self._jobs.judged(event.adapter, event.report)
        numbers = {"step": event.step, **event.report.numbers()}
        self._jobs.note(
            event.adapter,
            "info",
            f"step {event.step}: held-out loss {event.loss:.4f}, of what is served "
            f"{event.active_loss:.4f}, {event.num_samples} samples: {event.report.verdict}",
            "metrics",
            numbers,
        )
        if event.candidate is not None:
            self._promotions.offer(event)
            return
        adapter, reason = event.adapter, _REASONS[event.report.verdict]
        self._archive.write(lambda data: data.decisions.refuse(adapter, None, reason, numbers))

    def _hand_on(self, event: RoundEvent) -> None:
        if isinstance(event, RoundTrained):
            self._note_round(event)
        self._rounds.handle(event)

    def _note_round(self, event: RoundTrained) -> None:
        before, after = event.loss_before, event.loss_after
        text = f"round {event.number}: {event.num_tokens} tokens upon {event.base or 'nothing yet'}"
        if before is not None and after is not None:
            self._jobs.measured(
                event.adapter,
                HeldOut(after, event.error_after, event.exact_after.share),
                HeldOut(before, event.error_before, event.exact_before.share),
            )
            # What all learn is the version that the round began with.
            self._jobs.evaluated(
                event.adapter, before, event.num_measured, tokens_since=event.num_tokens
            )
            text += f", held-out loss {before:.4f} to {after:.4f} on {event.num_measured} samples"
        self._jobs.note(event.adapter, "info", text)

    def _shadow_reset(self, event: ShadowReset) -> None:
        text = f"training starts again from what is served: {event.reason}"
        self._jobs.note(event.adapter, "warn", text)
        adapter, numbers = event.adapter, {"step": event.step}
        self._archive.write(lambda data: data.decisions.refuse(adapter, None, text, numbers))
