"""The step loop: serve, then train while the budget allows, then swap adapters."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from collm.clock import Clock
from collm.engine.plan import StepOutput, StepPlan
from collm.engine.scheduler import Scheduler
from collm.metrics.exporter import ReplicaMetrics
from collm.pacing.budgets import Budget
from collm.pacing.cost import StepCostModel
from collm.pacing.quanta import COMPARING, Quantum
from collm.replica.board import Board
from collm.replica.inbox import (
    Abort,
    AddJob,
    AddSamples,
    CancelJob,
    CompareVersions,
    Finish,
    FinishRound,
    Follow,
    Inbox,
    Message,
    PauseJob,
    RemoveSample,
    ResumeJob,
    StartRound,
    Stop,
    Submit,
)
from collm.replica.learner import Learner
from collm.replica.request_log import RequestLog
from collm.replica.version_desk import VersionDesk
from collm.training.trainer import Trainer
from collm.types import TokenEvent

_log = logging.getLogger(__name__)

_IDLE_WAIT_S = 0.25
"""Longest sleep with nothing to serve or learn; messages end it."""


class StepHandle(Protocol):
    """A launched step."""

    def result(self) -> StepOutput:
        """Wait for the step's tokens."""
        ...


class Runner(Protocol):
    """Carries out step plans."""

    def launch(self, plan: StepPlan) -> StepHandle:
        """Start computing a plan."""
        ...


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one iteration did."""

    num_tokens: int
    num_quanta: int
    is_held_back: bool = False
    """Whether training had more to do, and the budget did not allow it."""


class StepLoop:
    """Owns one thread and everything below it; other threads reach it through the inbox alone.

    Args:
        scheduler: Decides what each step computes.
        runner: Computes it.
        trainer: Holds the quanta of training.
        learner: Takes what training found, and what is asked of its jobs.
        versions: Takes what is asked of versions.
        budget: Says whether a quantum fits now.
        step_cost: Learns how long steps take.
        log: Follows requests to their records.
        metrics: Counts steps, quanta and idle time.
        inbox: Messages from other threads.
        publish: Takes the events of a step, in order; must not block.
        board: Shows other threads how things stand.
        clock: Monotonic time.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        trainer: Trainer,
        learner: Learner,
        versions: VersionDesk,
        budget: Budget,
        step_cost: StepCostModel,
        log: RequestLog,
        metrics: ReplicaMetrics,
        inbox: Inbox,
        publish: Callable[[list[TokenEvent]], None],
        board: Board,
        clock: Clock,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._trainer = trainer
        self._learner = learner
        self._versions = versions
        self._budget = budget
        self._step_cost = step_cost
        self._log = log
        self._metrics = metrics
        self._inbox = inbox
        self._send = publish
        self._board = board
        self._clock = clock
        self._is_stopping = False

    def run(self) -> None:
        """Step until a ``Stop`` message, then hand over the state of training."""
        while not self._is_stopping:
            report = self.step()
            if report.num_tokens == 0 and report.num_quanta == 0 and not self._is_stopping:
                self._wait(is_held_back=report.is_held_back)
        self._learner.save()

    def step(self) -> StepReport:
        """Serve one iteration, train while the budget allows, then swap adapters."""
        self._inbox.drain(self._handle)
        if self._is_stopping:
            return StepReport(0, 0)
        plan = self._scheduler.schedule(self._clock.now_s())
        self._publish(self._serve(plan))
        if plan.is_empty:  # nobody waits for it, be there training to do or not
            self._scheduler.check()
        load = plan.load()
        self._budget.begin(
            self._scheduler.progress(),
            self._clock.now_s(),
            load.num_adapters,
            # What waited has had its chance in this step.
            is_blocked=load.num_prefill_tokens == 0,
        )
        num_quanta = 0
        while (quantum := self._peek()) and self._budget.allows(quantum, self._inbox):
            self._train(quantum)
            num_quanta += 1
            self._tend()  # here too: with nothing to serve, this goes on until a message comes
        self._tend()
        return StepReport(plan.num_tokens, num_quanta, is_held_back=quantum is not None)

    def _serve(self, plan: StepPlan) -> list[TokenEvent]:
        """Compute a plan; a step that fails ends its own requests and nothing else."""
        started_s = self._clock.now_s()
        try:
            output = self._runner.launch(plan).result()
        except Exception as error:
            _log.exception("a step of %d tokens failed", plan.num_tokens)
            return self._scheduler.fail(plan, error)
        ended_s = self._clock.now_s()
        if not plan.is_empty:
            load = plan.load()
            self._step_cost.observe(load, ended_s - started_s)
            share = self._step_cost.prefill_share(load)
            self._metrics.observe_step(load, ended_s - started_s, share)
        return self._scheduler.update(plan, output, ended_s)

    def _peek(self) -> Quantum | None:
        """Return the next quantum of a job that can say so."""
        while True:
            try:
                return self._trainer.peek()
            except Exception as error:
                self._end_job(error)

    def _train(self, quantum: Quantum) -> None:
        """Run a quantum; one that fails ends its own job and nothing else."""
        started_s = self._clock.now_s()
        try:
            events = self._trainer.run(quantum)
        except Exception as error:
            self._end_job(error)
            return
        ended_s = self._clock.now_s()
        self._budget.spent(quantum, ended_s - started_s, ended_s)
        work: Literal["train", "evaluate"] = "evaluate" if quantum.kind in COMPARING else "train"
        self._metrics.observe_quantum(quantum.kind, ended_s - started_s, work, quantum.adapter)
        self._learner.handle(events)

    def _end_job(self, error: Exception) -> None:
        adapter = self._trainer.turn
        if adapter is None:
            raise error
        self._learner.training_failed(adapter, error)

    def _tend(self) -> None:
        self._learner.tend()
        self._board.refresh_if_due()

    def _publish(self, events: list[TokenEvent]) -> None:
        if events:
            self._log.observe(events, self._clock.now_s())
            self._send(events)

    def _wait(self, *, is_held_back: bool) -> None:
        started_s = self._clock.now_s()
        self._inbox.wait(_IDLE_WAIT_S)
        self._metrics.observe_idle(self._clock.now_s() - started_s, is_held_back=is_held_back)

    def _handle(self, message: Message) -> None:
        match message:
            case Submit(requests):
                for request in requests:
                    self._log.begin(request)
                self._publish(self._scheduler.add(*requests))
            case Finish(request_id, choice):
                self._publish(self._scheduler.finish(request_id, choice))
            case Abort(request_id):
                self._publish(self._scheduler.abort(request_id))
            case Stop():
                self._is_stopping = True
            case AddJob() | CancelJob() | PauseJob() | ResumeJob() | AddSamples() | RemoveSample():
                self._learner.receive(message)
            case StartRound() | FinishRound() | CompareVersions():
                self._learner.receive_round(message)
            case Follow(allotment):
                self._learner.follow(allotment)
            case _:
                self._versions.receive(message)
