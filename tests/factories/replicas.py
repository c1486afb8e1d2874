"""A replica on a tiny model: whole, or as a step loop that a test drives by hand."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from collm.chats import parse_sample
from collm.clock import ManualClock
from collm.engine.config import MemoryConfig, SchedulerConfig
from collm.engine.plan import StepPlan
from collm.lora.config import LoraConfig
from collm.lora.peft_folder import save_peft
from collm.lora.state import AdapterState
from collm.lora.store import AdapterStore
from collm.metrics.exporter import ReplicaMetrics
from collm.metrics.traces import NoTraces
from collm.model.checkpoint import Checkpoint
from collm.model.decoder import Decoder
from collm.pacing.budgets import LatencyBudget
from collm.pacing.config import Objectives, PacingConfig
from collm.pacing.cost import QuantumCostModel, StepCostModel
from collm.pacing.credit import Credit
from collm.pacing.quanta import Quantum
from collm.replica.allotments import Allotments
from collm.replica.assembly import Replica, claim_data, open_replica
from collm.replica.board import Board
from collm.replica.config import ReplicaConfig
from collm.replica.deciders import Deciders, DecisionLimits, Surroundings, build_deciders
from collm.replica.inbox import Abort, AddJob, Inbox, Submit
from collm.replica.learner import Learner
from collm.replica.loop import StepLoop, StepReport
from collm.replica.request_log import RequestLog
from collm.replica.settings import ReplicaSettings, SampleSets
from collm.store.data_folder import DataFolder
from collm.training.config import JobConfig, TrainingConfig
from collm.training.events import TrainingEvent
from collm.training.job import Job
from collm.training.trainer import Trainer
from collm.types import Request, RequestId, SamplingParams, TokenEvent, VersionId
from factories.archives import InstantArchive, job_record
from factories.checkpoints import VOCAB_SIZE
from factories.engines import Engine, random_adapter
from factories.training import RIGHT_ANSWER, gate_config, lessons, make_job, make_watches

BASE_MODEL = "tiny"
QUANTUM_S = STEP_S = 0.001

CHATS = [
    [
        {"role": "user", "content": f"Number {number}?"},
        {"role": "assistant", "content": f"It is {'odd' if number % 2 else 'even'}."},
    ]
    for number in range(120)
]
"""Something that a tiny model gets better at within a few steps."""
SAMPLES = tuple(parse_sample(json.dumps({"messages": chat})) for chat in CHATS)


def settings(data_dir: Path, *jobs: JobConfig, **rooms: Any) -> ReplicaSettings:
    """Settings of a small float32 replica; ``rooms`` replaces whole rooms."""
    defaults: dict[str, Any] = {
        "replica": ReplicaConfig(data_dir=str(data_dir), threads=1, min_promotion_interval_s=0.0),
        "memory": MemoryConfig(kv_cache_mib=1, block_size=4, max_model_len=256),
        "scheduler": SchedulerConfig(),
        "lora": LoraConfig(max_rank=4, num_slots=6),
        "pacing": PacingConfig(),
        "training": training(*jobs),
    }
    return ReplicaSettings(base_model=BASE_MODEL, dtype=torch.float32, **(defaults | rooms))


def training(*jobs: JobConfig, **fields: Any) -> TrainingConfig:
    """Settings of training without general text, whose gate decides on few samples."""
    defaults: dict[str, Any] = {
        "checkpoint_interval_s": 1.0,
        "gate": gate_config(),
        "general_data": None,
    }
    return TrainingConfig(jobs=jobs, **(defaults | fields))


def learning(adapter: str = "tutor", **fields: Any) -> JobConfig:
    """A job on ``CHATS`` that finds something better after every optimizer step or so."""
    defaults: dict[str, Any] = {
        "rank": 4,
        "warmup_steps": 0,
        "tokens_per_step": 200,
        "micro_batch_tokens": 256,
        "evaluate_every": 1,
        "held_out_share": 0.2,
        "learning_rate": 3e-3,
    }
    return JobConfig(adapter=adapter, data="chats", **(defaults | fields))


def open_tiny_replica(checkpoint: Path, data_dir: Path, *jobs: JobConfig, **rooms: Any) -> Replica:
    """Open a real replica whose jobs, if any, learn ``CHATS``; ``samples`` says otherwise."""
    given = rooms.pop("samples", {})
    samples = SampleSets(**({"by_name": {"chats": SAMPLES}} | given))
    chosen = settings(data_dir, *jobs, **rooms)
    return open_replica(Checkpoint(checkpoint), chosen, samples, claim_data(chosen))


def publish_on_disk(
    checkpoint: Path, data_dir: Path, *seeds: int, adapter: str = "tutor", num_promoted: int = 0
) -> list[AdapterState]:
    """Leave versions 1, 2, … in a data folder, the first ``num_promoted`` promoted in turn."""
    base = Checkpoint(checkpoint)
    states = [random_adapter(base.spec, seed=seed) for seed in seeds]
    with DataFolder(data_dir, max_versions=100, now_s=lambda: 0.0) as data:
        for number, state in enumerate(states, 1):
            published = data.versions.publish(
                adapter,
                str(number),
                digest=state.digest(),
                base_digest=base.digest,
                rank=state.layout.rank,
                metadata={},
                write=lambda folder, state=state: save_peft(state, folder, BASE_MODEL),
            )
            if number <= num_promoted:
                data.decisions.promote(published.version, "for a test", {})
    return states


def learnable_job(decoder: Decoder, config: JobConfig) -> Job:
    """A job that finds something better than what is served again and again."""
    return make_job(
        decoder,
        config,
        training=lessons(60, RIGHT_ANSWER, seed=1),
        held_out=lessons(6, RIGHT_ANSWER, seed=2),
        gate=gate_config(error=0.5),
    )


class _QuantumClock(ManualClock):
    """A trainer's own, which it reads before and after each quantum; these all take as long."""

    def now_s(self) -> float:
        self.advance(QUANTUM_S)
        return super().now_s()


class TickingTrainer(Trainer):
    """Takes a millisecond per quantum, and calls ``on_run`` in the midst of each.

    With nothing to serve, a pause lasts until a message comes; after ``max_pause`` quanta one does.
    """

    def __init__(self, jobs: Sequence[Job], clock: ManualClock, inbox: Inbox) -> None:
        super().__init__(jobs, _QuantumClock())
        self._manual_clock = clock
        self._inbox = inbox
        self._num_in_pause = 0
        self.max_pause = 20
        self.ran: list[Quantum] = []
        self.on_run: Callable[[Quantum], None] = lambda quantum: None

    def begin_pause(self) -> None:
        self._num_in_pause = 0

    def run(self, quantum: Quantum) -> tuple[TrainingEvent, ...]:
        self._manual_clock.advance(QUANTUM_S)
        self.on_run(quantum)
        self.ran.append(quantum)
        self._num_in_pause += 1
        if self._num_in_pause == self.max_pause:
            self._inbox.put(Abort(RequestId("nobody's")))
        return super().run(quantum)


class TickingRunner:
    """Takes a millisecond per step."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self._engine = engine
        self._clock = clock
        self.on_launch: Callable[[StepPlan], None] = lambda plan: None

    def launch(self, plan: StepPlan) -> Any:
        self._clock.advance(STEP_S)
        self.on_launch(plan)
        return self._engine.runner.launch(plan)


@dataclass
class Rig:
    """A step loop and its parts; ``step`` runs it on the test's thread."""

    engine: Engine
    loop: StepLoop
    inbox: Inbox
    clock: ManualClock
    trainer: TickingTrainer
    runner: TickingRunner
    archive: InstantArchive
    deciders: Deciders
    credit: Credit
    board: Board
    metrics: ReplicaMetrics
    events: dict[str, list[TokenEvent]]
    quanta_before: dict[str, int]
    """Quanta that had run when a request's first event came."""

    @property
    def learner(self) -> Learner:
        return self.deciders.learner

    @property
    def allotments(self) -> Allotments:
        return self.deciders.allotments

    def add_job(self, job: Job) -> None:
        record = job_record(f"ftjob-{len(self.trainer.adapters)}", job.name)
        self.deciders.jobs.add(AddJob(job=job, record=record, base=None))

    @property
    def store(self) -> AdapterStore:
        return self.engine.store

    def submit(self, *requests: Request) -> None:
        for request in requests:
            self.inbox.put(Submit((request,)))

    def submit_call(self, *requests: Request) -> None:
        """Submit requests that came in one call."""
        self.inbox.put(Submit(requests))

    def step(self) -> StepReport:
        self.trainer.begin_pause()
        report = self.loop.step()
        self.engine.scheduler.check()
        return report

    def run_until(self, is_done: Callable[[], bool], max_steps: int = 5_000) -> None:
        for _ in range(max_steps):
            if is_done():
                return
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")

    def has_ended(self, *request_ids: str) -> bool:
        return all(
            any(event.finish_reason for event in self.events[request_id])
            for request_id in request_ids
        )

    def tokens(self, request_id: str) -> list[int]:
        return [e.token_id for e in self.events[request_id] if e.token_id is not None]

    def versions(self, request_id: str) -> set[VersionId | None]:
        return {event.version for event in self.events[request_id]}


def build_rig(
    engine: Engine,
    jobs: Sequence[Job] = (),
    *,
    min_promotion_interval_s: float = 0.0,
    checkpoint_interval_s: float = 1.0,
    credit_share: float = 0.0,
) -> Rig:
    """Wire a step loop around an engine, as ``open_replica`` does, on a clock that a test owns."""
    clock, inbox, credit = ManualClock(), Inbox(), Credit(credit_share)
    trainer, runner = TickingTrainer((), clock, inbox), TickingRunner(engine, clock)
    archive = InstantArchive(inbox)
    objectives = Objectives()
    metrics = ReplicaMetrics(BASE_MODEL, objectives)
    board = Board(engine.scheduler, engine.blocks, engine.store, metrics, clock)
    deciders = build_deciders(
        trainer,
        make_watches(engine.decoder),
        Surroundings(
            adapters=engine.store, archive=archive, metrics=metrics, board=board, clock=clock
        ),
        DecisionLimits(
            min_promotion_interval_s=min_promotion_interval_s,
            slot_wait_s=10.0,
            checkpoint_interval_s=checkpoint_interval_s,
        ),
        credit,
    )
    for number, job in enumerate(jobs):
        record = job_record(f"ftjob-{number}", job.name)
        deciders.jobs.add(AddJob(job=job, record=record, base=None))
    learner = deciders.learner
    board.show("adapters", learner.snapshot)
    step_cost = StepCostModel()
    budget = LatencyBudget(
        objectives,
        step_cost,
        QuantumCostModel(),
        prefill_limit=engine.prefill_limit,
        credit=credit,
        max_quantum_s=0.04,
    )
    events: dict[str, list[TokenEvent]] = defaultdict(list)
    quanta_before: dict[str, int] = {}

    def publish(news: list[TokenEvent]) -> None:
        for event in news:
            events[event.request_id].append(event)
            quanta_before.setdefault(event.request_id, len(trainer.ran))

    loop = StepLoop(
        scheduler=engine.scheduler,
        runner=runner,
        trainer=trainer,
        learner=learner,
        versions=deciders.versions,
        budget=budget,
        step_cost=step_cost,
        log=RequestLog(metrics, objectives, credit, NoTraces()),
        metrics=metrics,
        inbox=inbox,
        publish=publish,
        board=board,
        clock=clock,
    )
    return Rig(
        engine=engine,
        loop=loop,
        inbox=inbox,
        clock=clock,
        trainer=trainer,
        runner=runner,
        archive=archive,
        deciders=deciders,
        credit=credit,
        board=board,
        metrics=metrics,
        events=events,
        quanta_before=quanta_before,
    )


def greedy(
    request_id: str,
    prompt: Sequence[int],
    model: str = "base",
    *,
    max_tokens: int = 8,
    arrived_at_s: float = 0.0,
) -> Request:
    """A request without randomness that runs to its token limit."""
    assert all(token < VOCAB_SIZE for token in prompt)
    return Request(
        request_id=RequestId(request_id),
        model=model,
        prompt=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
        arrived_at_s=arrived_at_s,
    )
