"""All jobs of a replica, one quantum at a time."""

from collections.abc import Mapping, Sequence

from collm.clock import Clock
from collm.lora.state import AdapterState
from collm.pacing.quanta import Quantum
from collm.training.base_version import BaseVersion
from collm.training.config import JobConfig
from collm.training.events import TrainingEvent
from collm.training.feedback_watch import FeedbackWatch
from collm.training.job import Job
from collm.training.round_job import RoundJob
from collm.training.samples import TokenSample
from collm.training.shares import FairShares
from collm.training.snapshots import Program
from collm.training.turns import Turns, Worker
from collm.training.vigil import Vigil
from collm.types import WatchState

AnyJob = Job | RoundJob
"""What an adapter learns by: alone, or in rounds."""


class Trainer:
    """Runs jobs in turns of one program (a micro-batch, a step, an evaluation).

    The job with the least training time for its weight goes next. Only one micro-batch is in
    flight, so activations of one micro-batch are held whatever the number of jobs. A snapshot that
    was asked for goes before anything else, in the midst of whatever changes no parameter: only so
    is it sure to come soon where training waits for serving.
    """

    def __init__(self, jobs: Sequence[AnyJob], clock: Clock) -> None:
        """Train ``jobs``, whose adapters' names differ."""
        self._jobs: dict[str, AnyJob] = {}
        self._paused: set[str] = set()
        self._vigils: dict[str, Vigil] = {}
        self._shares = FairShares()
        self._clock = clock
        self._turns = Turns()
        for job in jobs:
            self.add(job)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that have a job, paused ones included."""
        return tuple(self._jobs)

    @property
    def turn(self) -> str | None:
        """The adapter whose turn it was; if ``peek`` or ``run`` raised, the one that failed."""
        latest = self._turns.latest
        return None if latest is None else latest.name

    @property
    def is_watching(self) -> bool:
        """Whether that turn was of a watch without a job."""
        return isinstance(self._turns.latest, Vigil)

    def peek(self) -> Quantum | None:
        """Return what ``run`` would perform; ``None`` when there is nothing to learn."""
        if not self._turns.has_snapshot:
            self._begin_snapshot()
        if self._turns.quantum is None:
            self._begin_turn()
        return self._turns.quantum

    def run(self, quantum: Quantum) -> tuple[TrainingEvent, ...]:
        """Perform ``quantum``, which is what ``peek`` returned, and report what it completed."""
        assert quantum is self._turns.quantum, (quantum, self._turns.quantum)
        started_s = self._clock.now_s()
        worker = self._turns.run()
        seconds = self._clock.now_s() - started_s
        self._shares.spend(_key(worker), seconds)
        if isinstance(worker, Job):  # a round's comparing is paid for by its plan
            worker.took(quantum.kind, seconds)
        return _taken(worker)

    def add(self, job: AnyJob) -> None:
        """Train another adapter; its share of time counts from now on.

        A watch over its version goes on, but for one of its own where others decide what is served.
        """
        assert job.name not in self._jobs, job.name
        self._jobs[job.name] = job
        self._shares.add(job.name, job.config.weight)
        self._give_watch(job)

    def remove(self, adapter: str) -> None:
        """Train ``adapter`` no more; what it learned since its last snapshot is lost.

        A watch over its version goes on.
        """
        job = self._jobs[adapter]
        self._turns.drop(job)
        self._take_watch(job)
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

        A watch over its version goes on.

        Returns:
            What a step that was half taken completed.
        """
        self._drop_program(adapter)
        job = self._jobs[adapter]
        job.request_snapshot()
        self._paused.add(adapter)
        self._take_watch(job)
        return _taken(job)

    def resume(self, adapter: str) -> None:
        """Let ``adapter`` go on; it is owed nothing for the time of its pause."""
        self._paused.discard(adapter)
        self._give_watch(self._jobs[adapter])

    def is_paused(self, adapter: str) -> bool:
        """Return whether ``adapter`` rests."""
        return adapter in self._paused

    def config(self, adapter: str) -> JobConfig:
        """Return how ``adapter``'s job is configured, whatever is allotted."""
        return self._jobs[adapter].config

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
        """Let ``adapter`` learn from these too, and first; no effect without job and watch."""
        for worker in (self._jobs.get(adapter), self._vigils.get(adapter)):
            if worker is not None:
                worker.add_samples(samples)

    def remove_sample(self, adapter: str, sample_id: str) -> bool:
        """Never use a sample again, in learning or judging; return whether a job had it."""
        if (vigil := self._vigils.get(adapter)) is not None:
            vigil.remove_sample(sample_id)
        job = self._jobs.get(adapter)
        return job is not None and job.remove_sample(sample_id)

    def watch(self, adapter: str, watch: FeedbackWatch) -> None:
        """Watch a promoted version on fresh feedback, in the place of another one's watch."""
        self.unwatch(adapter)
        job = self._jobs.get(adapter)
        if isinstance(job, Job) and adapter not in self._paused and not watch.is_joint:
            job.take_watch(watch)
        else:
            self._keep_vigil(adapter, watch)

    def unwatch(self, adapter: str) -> None:
        """Watch the adapter's version no more; no effect on one that is not watched."""
        self._end_vigil(adapter)
        if isinstance(job := self._jobs.get(adapter), Job):
            job.give_watch()

    def joint_watches(self) -> dict[str, WatchState]:
        """Return, by adapter, what was found so far of versions that others decide about too."""
        watches = {name: vigil.watch for name, vigil in self._vigils.items()}
        return {name: watch.state() for name, watch in watches.items() if watch.is_joint}

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

    def _begin_turn(self) -> None:
        """Begin the program whose turn it is, if there is anything to do."""
        awake = [job for name, job in self._jobs.items() if name not in self._paused]
        programs: dict[str, tuple[Worker, Program]] = {}
        for worker in (*awake, *self._vigils.values()):
            self._turns.latest = worker  # whose turn it is, should this raise
            if (program := worker.next_program()) is not None:
                programs[_key(worker)] = worker, program
        self._turns.latest = None
        if programs:
            self._turns.begin(*programs[self._shares.choose(programs)])

    def _begin_snapshot(self) -> None:
        """Begin a snapshot that is due and can be taken now, if there is one."""
        for job in self._jobs.values():
            program = None if self._turns.is_amid_step(job) else job.snapshot_program()
            if program is not None:
                self._turns.interrupt(job, program)
                return

    def _drop_program(self, adapter: str) -> None:
        job = self._jobs[adapter]
        self._turns.drop(job)
        job.drop_gradient()

    def _take_watch(self, job: AnyJob) -> None:
        """Go on with the watch of a job that does not any more."""
        if isinstance(job, Job) and (watch := job.give_watch()) is not None:
            self._keep_vigil(job.name, watch)

    def _give_watch(self, job: AnyJob) -> None:
        """Let a job go on with the watch that there was without it, if it is the job's to end."""
        vigil = self._vigils.get(job.name)
        if vigil is None or vigil.watch.is_joint:
            return
        self._end_vigil(job.name)
        if isinstance(job, Job):
            job.take_watch(vigil.watch)

    def _keep_vigil(self, adapter: str, watch: FeedbackWatch) -> None:
        self._vigils[adapter] = vigil = Vigil(adapter, watch)
        self._shares.add(_key(vigil), vigil.weight)

    def _end_vigil(self, adapter: str) -> None:
        """End a watch without a job, if there is one."""
        vigil = self._vigils.pop(adapter, None)
        if vigil is not None:
            self._shares.remove(_key(vigil))
            self._turns.drop(vigil)


def _key(worker: Worker) -> str:
    """Return the name that a worker's share of time goes by; no adapter is called like a watch."""
    return f"watch of {worker.name}" if isinstance(worker, Vigil) else worker.name


def _taken(worker: Worker) -> tuple[TrainingEvent, ...]:
    """Return what a worker completed and has not been told yet."""
    events, worker.events = tuple(worker.events), []
    return events
