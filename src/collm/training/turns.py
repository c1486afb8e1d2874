"""Programs under way: somebody's turn, and perhaps a snapshot in its midst."""

from dataclasses import dataclass
from typing import Protocol

from collm.pacing.quanta import Quantum, QuantumKind
from collm.training.events import TrainingEvent
from collm.training.snapshots import Program


class Worker(Protocol):
    """Who has programs to run: a job, or a watch in the place of one."""

    events: list[TrainingEvent]
    """What was completed and nobody was told yet."""

    @property
    def name(self) -> str:
        """The adapter's name."""
        ...


@dataclass(slots=True)
class _Turn:
    """A program under way."""

    worker: Worker
    program: Program
    quantum: Quantum
    """What is performed next."""
    has_begun: bool = False


class Turns:
    """Owns the one program that runs, and a snapshot that goes before what is left of it."""

    def __init__(self) -> None:
        """Begin with nothing under way."""
        self._turn: _Turn | None = None
        self._snapshot: _Turn | None = None
        self.latest: Worker | None = None
        """Who was asked or worked last; if that raised, who failed."""

    @property
    def quantum(self) -> Quantum | None:
        """What ``run`` would perform; ``None`` when nothing is under way."""
        turn = self._snapshot or self._turn
        return None if turn is None else turn.quantum

    @property
    def has_snapshot(self) -> bool:
        """Whether a snapshot is under way."""
        return self._snapshot is not None

    def is_amid_step(self, worker: Worker) -> bool:
        """Return whether some of the worker's parameters took a step and others did not."""
        turn = self._turn
        return (
            turn is not None
            and turn.worker is worker
            and turn.has_begun
            and turn.quantum.kind is QuantumKind.OPTIMIZER
        )

    def begin(self, worker: Worker, program: Program) -> None:
        """Let it be the worker's turn; nobody's else is under way."""
        assert self._turn is None
        self._turn = self._begun(worker, program)

    def interrupt(self, worker: Worker, snapshot: Program) -> None:
        """Let a snapshot go before what is under way, which changes nothing of the worker's."""
        assert self._snapshot is None
        self._snapshot = self._begun(worker, snapshot)

    def run(self) -> Worker:
        """Perform the quantum that is next; return whose it was."""
        turn = self._snapshot or self._turn
        assert turn is not None, "something is under way"
        self.latest = turn.worker
        quantum = next(turn.program, None)
        if quantum is not None:
            turn.quantum, turn.has_begun = quantum, True
        elif turn is self._snapshot:
            self._snapshot = None
        else:
            self._turn = None
        return turn.worker

    def drop(self, worker: Worker) -> None:
        """Leave what the worker is at, but for a step, of which the rest is applied: it is short.

        Half a step is no step.
        """
        turn = self._turn
        if turn is not None and turn.worker is worker:
            if turn.quantum.kind is QuantumKind.OPTIMIZER:
                for _ in turn.program:
                    pass
            self._turn = None
        if self._snapshot is not None and self._snapshot.worker is worker:
            self._snapshot = None

    def _begun(self, worker: Worker, program: Program) -> _Turn:
        self.latest = worker
        return _Turn(worker, program, next(program))
