"""All jobs of a replica, one quantum at a time."""

from collections.abc import Mapping, Sequence

from collm.clock import Clock
from collm.lora.state import AdapterState
from collm.pacing.quanta import Quantum, QuantumKind
from collm.training.base_version import BaseVersion
from collm.training.events import TrainingEvent
from collm.training.job import Job
from collm.training.round_job import RoundJob
from collm.training.samples import TokenSample
from collm.training.shares import FairShares
from collm.training.snapshots import Program
from collm.types import VersionId

AnyJob = Job | RoundJob
"""What an adapter learns by: alone, or in rounds."""


class Trainer:
    """Runs jobs in turns of one program (a micro-batch, a step, an evaluation, a snapshot).

    The job with the least training time for its weight goes next. Only one micro-batch is in
    flight, so activations of one micro-batch are held whatever the number of jobs.
    """

    def __init__(self, jobs: Sequence[AnyJob], clock: Clock) -> None:
        """Train ``jobs``, whose adapters' names differ."""
        self._jobs: dict[str, AnyJob] = {}
        self._paused: set[str] = set()
        self._shares = FairShares()
        self._clock = clock
        self._current: AnyJob | None = None
        self._program: Program | None = None
        self._quantum: Quantum | None = None
        for job in jobs:
            self.add(job)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that have a job, paused ones included."""
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
        seconds = self._clock.now_s() - started_s
        self._shares.spend(job.name, seconds)
        if isinstance(job, Job):  # a round's comparing is paid for by its plan
            job.took(quantum.kind, seconds)
        return _taken(job)

    def add(self, job: AnyJob) -> None:
        """Train another adapter; its share of time counts from now on."""
        assert job.name not in self._jobs, job.name
        self._jobs[job.name] = job
        self._shares.add(job.name, job.config.weight)

    def remove(self, adapter: str) -> None:
        """Train ``adapter`` no more; what it learned since its last snapshot is lost."""
        if self.turn == adapter:
            self._current, self._program, self._quantum = None, None, None
        del self._jobs[adapter]
        self._shares.remove(adapter)
        self._paused.discard(adapter)

    def allot(self, time_shares: Mapping[str, float], tokens_per_step: Mapping[str, int]) -> None:
        """Divide time and size steps so from now on; adapters left out go by their own settings.

        Those with a time share divide what their own weights would give them together.
        """
        named = time_shares.keys() & self._jobs.keys()
        whole = sum(self._jobs[name].config.weight for name in named)
        parts = sum(time_shares[name] for name in named)
        for name, job in self._jobs.items():
            is_named = name in named
            weight = whole * time_shares[name] / parts if is_named else job.config.weight
            self._shares.reweigh(name, weight)
            job.size_steps(tokens_per_step.get(name))

    def pause(self, adapter: str) -> tuple[TrainingEvent, ...]:
        """Let ``adapter`` rest after a snapshot; micro-batches since its last step come again.

        Returns:
            What a step that was half taken completed.
        """
        self._drop_program(adapter)
        job = self._jobs[adapter]
        job.request_snapshot()
        self._paused.add(adapter)
        return _taken(job)

    def resume(self, adapter: str) -> None:
        """Let ``adapter`` go on; it is owed nothing for the time of its pause."""
        self._paused.discard(adapter)

    def is_paused(self, adapter: str) -> bool:
        """Return whether ``adapter`` rests."""
        return adapter in self._paused

    def configured_tokens_per_step(self, adapter: str) -> int:
        """Return the sample tokens of a step of ``adapter``'s, whatever is allotted."""
        return self._jobs[adapter].config.tokens_per_step

    def request_snapshots(self) -> None:
        """Ask every job for a snapshot as of its last step."""
        for job in self._jobs.values():
            job.request_snapshot()

    def snapshot_now(self) -> tuple[TrainingEvent, ...]:
        """Snapshot every job that learned since its last snapshot; drops what is half done."""
        events: list[TrainingEvent] = []
        for adapter, job in self._jobs.items():
            self._drop_program(adapter)
            events += job.snapshot_now()
        return tuple(events)

    def add_samples(self, adapter: str, samples: Sequence[TokenSample]) -> None:
        """Let ``adapter`` learn from these too, and first."""
        self._jobs[adapter].add_samples(samples)

    def remove_sample(self, adapter: str, sample_id: str) -> bool:
        """Never use a sample again, in learning or judging; return whether it was there."""
        return self._jobs[adapter].remove_sample(sample_id)

    def promoted(
        self,
        adapter: str,
        version: VersionId,
        state: AdapterState,
        previous: VersionId | None,
        previous_state: AdapterState | None,
    ) -> None:
        """Watch ``version`` on fresh feedback against the one before it, or else the base."""
        self._alone(adapter).promoted(version, state, previous, previous_state)

    def rebase(self, adapter: str, old: AdapterState | None, new: AdapterState) -> None:
        """Let ``adapter`` go on from ``new``, keeping what it learned since ``old``."""
        self._drop_program(adapter)
        self._alone(adapter).rebase(old, new)

    def reset(self, adapter: str, state: AdapterState | None) -> None:
        """Let ``adapter`` go on from ``state`` or afresh, forgetting what it learned beyond it."""
        self._drop_program(adapter)
        self._alone(adapter).reset(state)

    # Adapters that are learned in rounds

    def learns_together(self, adapter: str) -> bool:
        """Return whether ``adapter`` has a job that learns in rounds."""
        return isinstance(self._jobs.get(adapter), RoundJob)

    def together(self, adapter: str) -> RoundJob:
        """Return the job of an adapter that learns in rounds, to ask it something."""
        job = self._jobs[adapter]
        assert isinstance(job, RoundJob), adapter
        return job

    def begin_round(
        self, adapter: str, number: int, max_tokens: int, base: BaseVersion | None
    ) -> Sequence[TrainingEvent]:
        """Let ``adapter`` train for a round; see ``RoundJob.begin_round``."""
        self._drop_program(adapter)
        return self.together(adapter).begin_round(number, max_tokens, base)

    def cut_round(self, adapter: str) -> Sequence[TrainingEvent]:
        """Let ``adapter`` report what it has as of its last step, now."""
        self._drop_program(adapter)
        return self.together(adapter).cut_round()

    def adopt(self, adapter: str, base: BaseVersion) -> Sequence[TrainingEvent]:
        """Let ``adapter`` go on from ``base``, with what it learned that is not in it."""
        self._drop_program(adapter)
        return self.together(adapter).adopt(base)

    def revert(self, adapter: str, base: BaseVersion | None) -> Sequence[TrainingEvent]:
        """Let ``adapter`` go on from ``base`` or afresh, forgetting what it learned beyond it."""
        self._drop_program(adapter)
        return self.together(adapter).revert(base)

    def _alone(self, adapter: str) -> Job:
        job = self._jobs[adapter]
        assert isinstance(job, Job), adapter
        return job

    def _begin_program(self) -> Quantum | None:
        """Return the first quantum of the program whose turn it is."""
        programs: dict[str, Program] = {}
        for name, job in self._jobs.items():
            self._current, self._program = job, None  # whose turn it is, should this raise
            is_paused = name in self._paused
            program = job.snapshot_program() if is_paused else job.next_program()
            if program is not None:
                programs[name] = program
        self._current = None
        if not programs:
            return None
        name = self._shares.choose(programs)
        self._current, self._program = self._jobs[name], programs[name]
        return next(self._program)

    def _drop_program(self, adapter: str) -> None:
        if self.turn == adapter:
            if self._quantum is not None and self._quantum.kind is QuantumKind.OPTIMIZER:
                # Half a step is no step: apply the rest, which is short.
                for _ in self._program or ():
                    pass
            self._current, self._program, self._quantum = None, None, None
        self._jobs[adapter].drop_gradient()


def _taken(job: AnyJob) -> tuple[TrainingEvent, ...]:
    """Return what a job completed and has not been told yet."""
    events, job.events = tuple(job.events), []
    return events
