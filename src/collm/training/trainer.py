"""All jobs of a replica, one quantum at a time."""

from collections.abc import Sequence

from collm.clock import Clock
from collm.lora.state import AdapterState
from collm.pacing.quanta import Quantum, QuantumKind
from collm.training.events import TrainingEvent
from collm.training.job import Job, Program


class Trainer:
    """Runs jobs in turns of one program (a micro-batch, a step, an evaluation, a snapshot).

    The job with the least training time for its weight goes next. Only one micro-batch is in
    flight, so activations of one micro-batch are held whatever the number of jobs.
    """

    def __init__(self, jobs: Sequence[Job], clock: Clock) -> None:
        """Train ``jobs``, whose adapters' names differ."""
        self._jobs = {job.name: job for job in jobs}
        self._spent_s = dict.fromkeys(self._jobs, 0.0)
        self._clock = clock
        self._current: Job | None = None
        self._program: Program | None = None
        self._quantum: Quantum | None = None

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that learn."""
        return tuple(self._jobs)

    @property
    def turn(self) -> str | None:
        """The adapter whose turn it is; if ``peek`` or ``run`` raised, the one that failed."""
        return None if self._current is None else self._current.name

    def peek(self) -> Quantum | None:
        """Return what ``run`` would perform; ``None`` when there is nothing to learn."""
        if self._quantum is None:
            self._quantum = self._begin_program()
        return self._quantum

    def run(self, quantum: Quantum) -> tuple[TrainingEvent, ...]:
        """Perform ``quantum``, which is what ``peek`` returned, and report what it completed."""
        assert quantum is self._quantum, (quantum, self._quantum)
        assert self._program is not None
        assert self._current is not None
        job, started_s = self._current, self._clock.now_s()
        self._quantum = next(self._program, None)
        self._spent_s[job.name] += self._clock.now_s() - started_s
        events, job.events = tuple(job.events), []
        return events

    def remove(self, adapter: str) -> None:
        """Train ``adapter`` no more; what it learned since its last snapshot is lost."""
        if self.turn == adapter:
            self._current, self._program, self._quantum = None, None, None
        del self._jobs[adapter]

    def request_snapshots(self) -> None:
        """Ask every job for a snapshot at its next boundary."""
        for job in self._jobs.values():
            job.request_snapshot()

    def snapshot_now(self) -> tuple[TrainingEvent, ...]:
        """Snapshot every job that learned since its last snapshot; drops what is half done."""
        events: list[TrainingEvent] = []
        for adapter, job in self._jobs.items():
            self._drop_program(adapter)
            events += job.snapshot_now()
        return tuple(events)

    def rebase(self, adapter: str, old: AdapterState | None, new: AdapterState) -> None:
        """Let ``adapter`` go on from ``new``, keeping what it learned since ``old``."""
        self._drop_program(adapter)
        self._jobs[adapter].rebase(old, new)

    def reset(self, adapter: str, state: AdapterState) -> None:
        """Let ``adapter`` go on from ``state``, forgetting what it learned beyond it."""
        self._drop_program(adapter)
        self._jobs[adapter].reset(state)

    def _begin_program(self) -> Quantum | None:
        """Return the first quantum of the next program that has one."""
        by_turn = sorted(
            self._jobs.values(), key=lambda job: self._spent_s[job.name] / job.config.weight
        )
        for job in by_turn:
            program = job.next_program()
            if program is not None:
                self._current, self._program = job, program
                return next(program)
        return None

    def _drop_program(self, adapter: str) -> None:
        if self._current is not None and self._current.name == adapter:
            assert self._program is not None
            if self._quantum is not None and self._quantum.kind is QuantumKind.OPTIMIZER:
                # Half a step is no step: apply the rest, which is short.
                for _ in self._program:
                    pass
            self._current, self._program, self._quantum = None, None, None
        self._jobs[adapter].drop_gradient()
