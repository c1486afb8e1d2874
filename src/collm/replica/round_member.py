"""This replica's part in rounds of learning together; loop thread only."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from collm.clock import Clock
from collm.errors import CollmError, RoundError, UnknownObjectError
from collm.federated.rounds import GateReport, Progress, SliceSums, UpdateReport
from collm.gate.trial import PairedLoss
from collm.replica.archive import Archive
from collm.replica.inbox import CompareVersions, FinishRound, RoundMessage, StartRound, tell
from collm.replica.round_board import Key, RoundBoard
from collm.replica.swap import Cause, Swap
from collm.training.base_version import BaseVersion
from collm.training.comparing import Comparison
from collm.training.events import (
    Compared,
    RoundEvent,
    RoundFailed,
    RoundTrained,
    TrainingEvent,
)
from collm.training.trainer import Trainer
from collm.types import VersionId

_log = logging.getLogger(__name__)
_Events = Sequence[TrainingEvent]
_OWN = "own"
"""Slice of the samples that are of none."""


@dataclass(slots=True)
class _Part:
    """What an adapter's job is doing for others."""

    number: int
    due_at_s: float


class RoundMember:
    """Has jobs train and compare for rounds, and shows what they found.

    Args:
        name: This replica's name.
        trainer: Has the jobs.
        archive: Writes updates.
        board: Shows how far things are.
        clock: Monotonic time.
    """

    def __init__(
        self, name: str, trainer: Trainer, archive: Archive, board: RoundBoard, clock: Clock
    ) -> None:
        self._name = name
        self._trainer = trainer
        self._archive = archive
        self._board = board
        self._clock = clock
        self._training: dict[str, _Part] = {}
        self._comparing: dict[str, int] = {}
        """Number of the round whose candidate each adapter's job compares."""

    def receive(self, message: RoundMessage) -> _Events:
        """Carry out a message; return what training has to tell at once."""
        try:
            match message:
                case StartRound():
                    events = self._start(message)
                case FinishRound(adapter=adapter, number=number):
                    events = self._finish(adapter, number)
                case CompareVersions():
                    events = self._compare(message)
        except CollmError as error:
            tell(message.reply, error)
            return ()
        tell(message.reply, None)
        return events

    def follow(self, swap: Swap) -> _Events | None:
        """Let training go on from what is served now; ``None`` if the adapter learns alone."""
        if not self._trainer.learns_together(swap.adapter):
            return None
        if swap.state is None:
            return self._trainer.revert(swap.adapter, None)
        base = BaseVersion.of(swap.version, swap.state, swap.metadata)
        if swap.cause is Cause.RETURNED or _is_older(swap.version, swap.previous):
            return self._trainer.revert(swap.adapter, base)
        return self._trainer.adopt(swap.adapter, base)

    def handle(self, event: RoundEvent) -> None:
        """Take in what a job found."""
        key = event.adapter, event.number
        match event:
            case RoundTrained():
                self._end_part(event)
                self._save(key, event)
            case RoundFailed(reason=reason):
                self._end_part(event)
                self._board.set_round(key, Progress(error=reason))
            case Compared():
                if self._comparing.get(event.adapter) == event.number:
                    del self._comparing[event.adapter]
                self._board.set_gate(key, Progress(report=self._gate_report(event)))

    def tend(self) -> _Events:
        """End what is due, or cannot go on; called once per step."""
        events: list[TrainingEvent] = []
        for adapter, part in tuple(self._training.items()):
            if (reason := self._obstacle(adapter)) is not None:
                events += self._give_up(adapter, part, reason)
            elif self._clock.now_s() >= part.due_at_s:
                self._trainer.together(adapter).finish_round()
        for adapter, number in tuple(self._comparing.items()):
            if (reason := self._obstacle(adapter)) is not None:
                del self._comparing[adapter]
                self._board.set_gate((adapter, number), Progress(error=reason))
        return events

    def _start(self, message: StartRound) -> _Events:
        plan = message.plan
        key = plan.adapter, plan.round
        if self._board.round(key) is not None:
            return ()
        self._check(plan.adapter)
        if not self._trainer.together(plan.adapter).has_samples:
            raise RoundError(f"{plan.adapter} has no samples here to learn from")
        events = self._trainer.begin_round(plan.adapter, plan.round, plan.max_tokens, message.base)
        self._board.set_round(key, Progress())
        self._training[plan.adapter] = _Part(plan.round, self._clock.now_s() + plan.deadline_s)
        _log.info("%s round %d: training from %s", plan.adapter, plan.round, plan.base_version)
        return events

    def _finish(self, adapter: str, number: int) -> _Events:
        if self._board.round((adapter, number)) is None:
            raise UnknownObjectError(f"round {number} of {adapter!r} is not known here")
        part = self._training.get(adapter)
        if part is not None and part.number == number:
            self._trainer.together(adapter).finish_round()
        return ()

    def _compare(self, message: CompareVersions) -> _Events:
        plan = message.plan
        key = plan.adapter, plan.round
        if self._board.gate(key) is not None:
            return ()
        self._check(plan.adapter)
        job = self._trainer.together(plan.adapter)
        if not job.has_held_out:
            raise RoundError(f"{plan.adapter} has no held-out samples here to compare on")
        if (number := self._comparing.get(plan.adapter)) is not None:
            error = f"the candidate of round {plan.round} took its place"
            self._board.set_gate((plan.adapter, number), Progress(error=error))
        job.compare(
            Comparison(
                number=plan.round,
                candidate=plan.candidate,
                candidate_state=message.candidate,
                active=plan.active,
                active_state=message.active,
                max_samples=plan.max_samples,
            )
        )
        self._comparing[plan.adapter] = plan.round
        self._board.set_gate(key, Progress())
        return ()

    def _check(self, adapter: str) -> None:
        """Raise ``RoundError`` unless the adapter's job can do something for others."""
        if (obstacle := self._obstacle(adapter)) is not None:
            raise RoundError(f"{self._name} does not take part: {obstacle}")

    def _obstacle(self, adapter: str) -> str | None:
        if not self._trainer.learns_together(adapter):
            return f"{adapter} has no job here that learns in rounds"
        return f"the job of {adapter} is paused" if self._trainer.is_paused(adapter) else None

    def _give_up(self, adapter: str, part: _Part, reason: str) -> _Events:
        if self._trainer.learns_together(adapter):
            return self._trainer.cut_round(adapter)
        del self._training[adapter]
        self._board.set_round((adapter, part.number), Progress(error=reason))
        return ()

    def _end_part(self, event: RoundTrained | RoundFailed) -> None:
        part = self._training.get(event.adapter)
        if part is not None and part.number == event.number:  # not a later one, begun meanwhile
            del self._training[event.adapter]

    def _save(self, key: Key, event: RoundTrained) -> None:
        """Write an update; it is reported when it is on disk, by the digest of what is there."""

        def then(outcome: str | Exception) -> None:
            if isinstance(outcome, Exception):
                error = f"the update could not be written: {outcome}"
                self._board.set_round(key, Progress(error=error))
                return
            report = UpdateReport(
                adapter=event.adapter,
                round=event.number,
                member=self._name,
                base_version=event.base,
                num_examples=event.num_examples,
                num_tokens=event.num_tokens,
                loss_before=event.loss_before,
                loss_after=event.loss_after,
                is_complete=event.is_complete,
                digest=outcome,
                gradient=event.gradient,
            )
            self._board.set_round(key, Progress(report=report))

        self._archive.save_update(event.adapter, event.number, self._name, event.state, then)

    def _gate_report(self, event: Compared) -> GateReport:
        pairs: dict[str, list[PairedLoss]] = {}
        num_not_finite = 0
        for pair in event.pairs:
            found = pairs.setdefault(pair.slice or _OWN, [])
            if not math.isfinite(pair.candidate):
                num_not_finite += 1
            elif math.isfinite(pair.active):
                found.append(pair)
        slices = {name: _sums_of(found) for name, found in pairs.items()}
        return GateReport(member=self._name, slices=slices, num_not_finite=num_not_finite)


def _sums_of(pairs: Sequence[PairedLoss]) -> SliceSums:
    d = [pair.candidate - pair.active for pair in pairs]
    return SliceSums(
        n=len(d),
        sum_d=math.fsum(d),
        sum_d2=math.fsum(x * x for x in d),
        sum_active=math.fsum(pair.active for pair in pairs),
    )


def _is_older(version: VersionId, previous: VersionId | None) -> bool:
    """Return whether a coordinator took back ``previous``: by its numbers, time runs backwards."""
    labels = [(name or "").partition("@")[2] for name in (version, previous)]
    return all(label.isdecimal() for label in labels) and int(labels[0]) < int(labels[1])
