"""A replica on a tiny model: whole, or as a step loop that a test drives by hand."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from collm.clock import ManualClock
from collm.engine.config import MemoryConfig, SchedulerConfig
from collm.engine.plan import StepPlan
from collm.lora.config import LoraConfig
from collm.lora.peft_folder import save_peft
from collm.lora.state import AdapterState
from collm.lora.store import AdapterStore, version_id
from collm.metrics.exporter import ReplicaMetrics
from collm.model.checkpoint import Checkpoint
from collm.pacing.budgets import LatencyBudget
from collm.pacing.config import Objectives, PacingConfig
from collm.pacing.cost import QuantumCostModel, StepCostModel
from collm.pacing.credit import Credit
from collm.pacing.quanta import Quantum
from collm.replica.assembly import Replica, ReplicaSettings, open_replica
from collm.replica.board import Board
from collm.replica.config import ReplicaConfig
from collm.replica.inbox import (
    Abort,
    Inbox,
    Promoted,
    PromotionFailed,
    Published,
    PublishFailed,
    Submit,
)
from collm.replica.learner import Learner
from collm.replica.loop import StepLoop, StepReport
from collm.replica.request_log import RequestLog
from collm.store.data_folder import DataFolder
from collm.training.config import JobConfig, TrainingConfig
from collm.training.events import TrainingEvent, TrainingSnapshot
from collm.training.job import Job
from collm.training.trainer import Trainer
from collm.types import Request, RequestId, SamplingParams, TokenEvent, VersionId
from factories.checkpoints import VOCAB_SIZE
from factories.engines import Engine, random_adapter

BASE_MODEL = "tiny"
QUANTUM_S = STEP_S = 0.001

CHATS = [
    [
        {"role": "user", "content": f"Number {number}?"},
        {"role": "assistant", "content": f"It is {'odd' if number % 2 else 'even'}."},
    ]
    for number in range(40)
]
"""Something that a tiny model gets better at within a few steps."""


def settings(data_dir: Path, *jobs: JobConfig, **rooms: Any) -> ReplicaSettings:
    """Settings of a small float32 replica; ``rooms`` replaces whole rooms."""
    defaults: dict[str, Any] = {
        "replica": ReplicaConfig(data_dir=str(data_dir), threads=1, min_promotion_interval_s=0.0),
        "memory": MemoryConfig(kv_cache_mib=1, block_size=4, max_model_len=256),
        "scheduler": SchedulerConfig(),
        "lora": LoraConfig(max_rank=4, num_slots=6),
        "pacing": PacingConfig(),
        "training": TrainingConfig(jobs=jobs, checkpoint_interval_s=1.0),
    }
    return ReplicaSettings(base_model=BASE_MODEL, dtype=torch.float32, **(defaults | rooms))


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
    return JobConfig(adapter=adapter, data="test", **(defaults | fields))


def open_tiny_replica(checkpoint: Path, data_dir: Path, *jobs: JobConfig, **rooms: Any) -> Replica:
    """Open a real replica whose jobs, if any, learn ``CHATS``."""
    datasets = {job.adapter: CHATS for job in jobs}
    return open_replica(Checkpoint(checkpoint), settings(data_dir, *jobs, **rooms), datasets)


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


def wait_until(is_true: Callable[[], Any], timeout_s: float = 60.0) -> None:
    """Look again and again until ``is_true()``; fail the test after ``timeout_s``."""
    deadline_s, pause = time.monotonic() + timeout_s, threading.Event()
    while not is_true():
        assert time.monotonic() < deadline_s, "waited in vain"
        pause.wait(0.02)


class InstantArchive:
    """Keeps in memory what the real one writes, at once or, while ``is_held``, when told to."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._numbers: dict[str, int] = defaultdict(int)
        self._held: list[tuple[Callable[[], None], Callable[[Exception], None]]] = []
        self.is_held = False
        self.states: dict[VersionId, AdapterState] = {}
        self.log: list[str] = []
        self.snapshots: list[TrainingSnapshot] = []

    def publish(
        self,
        adapter: str,
        state: AdapterState,
        metadata: Mapping[str, str],
        numbers: Mapping[str, Any],
    ) -> None:
        def write() -> None:
            self._numbers[adapter] += 1
            version = version_id(adapter, str(self._numbers[adapter]))
            self.states[version] = state
            self.log.append(f"published {version}")
            self._inbox.put(
                Published(
                    adapter=adapter,
                    version=version,
                    state=state,
                    metadata=metadata,
                    numbers=numbers,
                    is_local=True,
                )
            )

        self._do(write, lambda error: self._inbox.put(PublishFailed(adapter, state, error)))

    def record_promotion(self, published: Published, reason: str) -> None:
        def write() -> None:
            self.log.append(f"promoted {published.version}")
            self._inbox.put(Promoted(published))

        self._do(write, lambda error: self._inbox.put(PromotionFailed(published, error)))

    def record_rollback(
        self, adapter: str, version: VersionId, then: Callable[[Exception | None], None]
    ) -> None:
        def write() -> None:
            assert version.startswith(f"{adapter}@")
            self.log.append(f"rolled back to {version}")
            then(None)

        self._do(write, then)

    def save_checkpoint(self, snapshot: TrainingSnapshot) -> None:
        self.snapshots.append(snapshot)

    def write_held(self) -> None:
        """Write the first thing held back."""
        self._held.pop(0)[0]()

    def fail_held(self, error: Exception) -> None:
        """Fail to write the first thing held back."""
        self._held.pop(0)[1](error)

    @property
    def num_held(self) -> int:
        return len(self._held)

    def _do(self, write: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        if self.is_held:
            self._held.append((write, failed))
        else:
            write()


class TickingTrainer(Trainer):
    """Takes a millisecond per quantum, and calls ``on_run`` in the midst of each.

    With nothing to serve, a pause lasts until a message comes; after ``max_pause`` quanta one does.
    """

    def __init__(self, jobs: Sequence[Job], clock: ManualClock, inbox: Inbox) -> None:
        super().__init__(jobs, clock)
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
    learner: Learner
    board: Board
    events: dict[str, list[TokenEvent]]
    quanta_before: dict[str, int]
    """Quanta that had run when a request's first event came."""

    @property
    def store(self) -> AdapterStore:
        return self.engine.store

    def submit(self, *requests: Request) -> None:
        for request in requests:
            self.inbox.put(Submit(request))

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
) -> Rig:
    """Wire a step loop around an engine, as ``open_replica`` does, on a clock that a test owns."""
    clock, inbox = ManualClock(), Inbox()
    trainer, runner = TickingTrainer(jobs, clock, inbox), TickingRunner(engine, clock)
    archive = InstantArchive(inbox)
    objectives = Objectives()
    metrics = ReplicaMetrics(BASE_MODEL, objectives)
    board = Board(engine.scheduler, engine.blocks, engine.store, metrics, clock)
    learner = Learner(
        trainer,
        engine.store,
        archive,  # type: ignore[arg-type]
        metrics,
        clock,
        on_swap=board.refresh,
        min_promotion_interval_s=min_promotion_interval_s,
        checkpoint_interval_s=checkpoint_interval_s,
    )
    board.show("adapters", learner.snapshot)
    credit, step_cost = Credit(0.0), StepCostModel()
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
        budget=budget,
        step_cost=step_cost,
        log=RequestLog(metrics, objectives, credit),
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
        learner=learner,
        board=board,
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
