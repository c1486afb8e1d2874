"""Building a replica: weights, memory, stores, jobs, loop, wired once at start-up."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from collm.clock import Clock, MonotonicClock
from collm.engine.blocks import BlockManager
from collm.engine.config import MemoryConfig, SchedulerConfig
from collm.engine.memory import allocate_caches, plan_memory
from collm.engine.runner import ModelRunner
from collm.engine.scheduler import Scheduler
from collm.errors import AdapterError, ConfigError
from collm.lora.bank import AdapterBank
from collm.lora.config import LoraConfig
from collm.lora.layout import lora_layout
from collm.lora.state import AdapterState, initial_state
from collm.lora.store import AdapterStore
from collm.metrics.exporter import ReplicaMetrics
from collm.model.checkpoint import Checkpoint
from collm.model.decoder import Decoder
from collm.model.tokenizer import Message, Tokenizer
from collm.model.weights import load_weights
from collm.pacing.budgets import make_budget
from collm.pacing.chunking import make_prefill_limit
from collm.pacing.config import PacingConfig
from collm.pacing.cost import QuantumCostModel, StepCostModel
from collm.pacing.credit import Credit
from collm.pacing.quanta import QuantumKind
from collm.replica.archive import CHECKPOINT_BASE, CHECKPOINT_FILE, Archive
from collm.replica.board import Board
from collm.replica.client import Deliveries, ReplicaClient
from collm.replica.config import ReplicaConfig
from collm.replica.inbox import Inbox, Stop
from collm.replica.learner import Learner
from collm.replica.library import Library
from collm.replica.loop import StepLoop
from collm.replica.process_memory import resident_bytes
from collm.replica.request_log import RequestLog
from collm.store.data_folder import DataFolder
from collm.training.config import JobConfig, TrainingConfig
from collm.training.job import Job
from collm.training.passes import warm_up
from collm.training.samples import prepare_samples
from collm.training.trainer import Trainer
from collm.types import Request, RequestId, SamplingParams, VersionId

_log = logging.getLogger(__name__)

_WARM_UP_LENGTHS = (24, 200, 48, 12)
"""Prompt lengths of the requests of a warm-up round: one in the first, one more in each."""
_WARM_UP_ROUNDS = 4

Conversations = Sequence[Sequence[Message]]
"""Training samples as chat messages, each ending with the assistant's turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """What a replica is made from, besides its checkpoint and its data."""

    base_model: str
    dtype: torch.dtype
    replica: ReplicaConfig
    memory: MemoryConfig
    scheduler: SchedulerConfig
    lora: LoraConfig
    pacing: PacingConfig
    training: TrainingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A running replica."""

    client: ReplicaClient
    inbox: Inbox
    thread: threading.Thread
    archive: Archive
    data: DataFolder

    def close(self) -> None:
        """End the loop after its current step, finish writing, and let go of the data folder."""
        self.inbox.put(Stop())
        self.thread.join()
        self.archive.close()
        self.data.close()


def open_replica(
    checkpoint: Checkpoint, settings: ReplicaSettings, datasets: Mapping[str, Conversations]
) -> Replica:
    """Load a checkpoint, take up what the data folder holds, and start the step loop.

    Args:
        checkpoint: The base model.
        settings: Every room's configuration.
        datasets: Samples of each job, by adapter name.

    Raises:
        ModelError: The checkpoint cannot be served.
        ConfigError: A setting does not fit the model or the machine.
        DataError: A job has too few usable samples.
    """
    _check_slots(settings)
    data = DataFolder(
        Path(settings.replica.data_dir),
        max_versions=settings.replica.max_versions,
        now_s=time.time,
    )
    try:
        return _wire(checkpoint, settings, datasets, data)
    except BaseException:
        data.close()
        raise


def _check_slots(settings: ReplicaSettings) -> None:
    """Raise ``ConfigError`` when learning adapters would soon have no slot for what comes next."""
    num_jobs = len(settings.training.jobs)
    num_needed = 2 * num_jobs + 1
    if num_jobs and settings.lora.num_slots < num_needed:
        raise ConfigError(
            f"lora.num_slots is {settings.lora.num_slots}; {num_jobs} training.jobs need at least "
            f"{num_needed}: each one active and one held version, and one for the next to come"
        )


def _wire(
    checkpoint: Checkpoint,
    settings: ReplicaSettings,
    datasets: Mapping[str, Conversations],
    data: DataFolder,
) -> Replica:
    """Make every part and start the threads; long because a replica has many parts."""
    spec, device, clock = checkpoint.spec, torch.device("cpu"), MonotonicClock()
    if settings.replica.threads is not None:
        torch.set_num_threads(settings.replica.threads)
    memory = plan_memory(settings.memory, spec, settings.dtype)
    tokenizer = Tokenizer(checkpoint.folder, spec.eos_token_ids)
    weights = load_weights(checkpoint, spec, settings.dtype, device)
    _log.info("weights: %d MiB as %s", weights.num_bytes >> 20, type(weights.head).__name__)
    decoder = Decoder(spec, weights, memory.max_model_len)
    caches = allocate_caches(memory, spec, settings.dtype, device)
    bank = AdapterBank(
        lora_layout(spec, settings.lora.max_rank), settings.lora.num_slots, settings.dtype, device
    )
    library = Library(data.versions, spec, checkpoint.digest)
    inbox, deliveries = Inbox(), Deliveries()
    blocks = BlockManager(
        memory.num_blocks,
        memory.block_size,
        enable_prefix_cache=settings.scheduler.enable_prefix_cache,
    )
    adapters = AdapterStore(bank, settings.base_model, blocks.evict_version)
    metrics = ReplicaMetrics(settings.base_model, settings.pacing)
    _restore_versions(adapters, data, library, metrics)
    for job in settings.training.jobs:
        adapters.announce(job.adapter)

    step_cost = StepCostModel(quantile=settings.pacing.quantile)
    quantum_cost = QuantumCostModel(quantile=settings.pacing.quantile)
    credit = Credit(settings.pacing.credit_share, settings.pacing.credit_burst_s)
    prefill_limit = make_prefill_limit(settings.pacing, step_cost)
    budget = make_budget(settings.pacing, step_cost, quantum_cost, credit, prefill_limit)
    eos_token_ids = frozenset(tokenizer.eos_token_ids)
    scheduler = Scheduler(
        settings.scheduler, blocks, adapters, prefill_limit, eos_token_ids, memory.max_model_len
    )
    jobs = _Jobs(settings, decoder, tokenizer, adapters, data, quantum_cost, checkpoint.digest)
    trainer = Trainer([jobs.open(job, datasets) for job in settings.training.jobs], clock)
    archive = Archive(data, settings.base_model, checkpoint.digest, inbox)
    board = Board(scheduler, blocks, adapters, metrics, clock)
    learner = Learner(
        trainer,
        adapters,
        archive,
        metrics,
        clock,
        on_swap=board.refresh,
        min_promotion_interval_s=settings.replica.min_promotion_interval_s,
        checkpoint_interval_s=settings.training.checkpoint_interval_s,
    )
    log = RequestLog(metrics, settings.pacing, credit)
    board.show("finished", lambda: log.num_finished)
    board.show("failed", lambda: log.num_failed)
    board.show("mixed", lambda: log.num_mixed)
    board.show("adapters", learner.snapshot)
    board.show("weight_bytes", lambda: weights.num_bytes)
    board.show("resident_bytes", resident_bytes)
    board.show("loop_seconds", metrics.times.seconds)
    board.show("quanta", metrics.times.quanta)
    board.show("token_gaps", metrics.times.gaps)
    board.show("calibration", lambda: _calibration(step_cost, quantum_cost))
    board.refresh()
    runner = ModelRunner(decoder, caches, bank, eos_token_ids)
    loop = StepLoop(
        scheduler=scheduler,
        runner=runner,
        trainer=trainer,
        learner=learner,
        budget=budget,
        step_cost=step_cost,
        log=log,
        metrics=metrics,
        inbox=inbox,
        publish=deliveries.publish,
        board=board,
        clock=clock,
    )
    _warm_up(settings.base_model, scheduler, runner, step_cost, clock)
    if settings.training.jobs:
        warm_up(decoder)
    thread = threading.Thread(target=_run, args=(loop, deliveries), name="collm-loop", daemon=True)
    client = ReplicaClient(
        base_model=settings.base_model,
        max_model_len=memory.max_model_len,
        tokenizer=tokenizer,
        inbox=inbox,
        deliveries=deliveries,
        board=board,
        metrics=metrics,
        library=library,
        thread=thread,
        clock=clock,
    )
    archive.start()
    thread.start()
    return Replica(client=client, inbox=inbox, thread=thread, archive=archive, data=data)


def _run(loop: StepLoop, deliveries: Deliveries) -> None:
    """Run the loop to its end, and let nobody wait for it any longer.

    What escapes the loop would leave requests, blocks or versions in an unknown state, so it ends
    the replica: the server sees the dead thread, and exits with an error.
    """
    try:
        loop.run()
    except Exception:
        _log.exception("the step loop failed")
    finally:
        deliveries.end()


def _warm_up(
    base_model: str,
    scheduler: Scheduler,
    runner: ModelRunner,
    step_cost: StepCostModel,
    clock: Clock,
) -> None:
    """Serve a few requests to nobody: the first steps of a process are many times slower.

    The rounds after the first teach the cost model, so that the first users are paced by it.
    """
    for number in range(_WARM_UP_ROUNDS):
        for length in _WARM_UP_LENGTHS[: number + 1]:
            request = Request(
                request_id=RequestId(f"warm-up-{number}-{length}"),
                model=base_model,
                # Other tokens each time, or the prefix cache would answer.
                prompt=tuple((number + 2) * position % 97 for position in range(length)),
                sampling=SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True),
                arrived_at_s=clock.now_s(),
            )
            scheduler.add(request)
        while scheduler.has_work:
            started_s = clock.now_s()
            plan = scheduler.schedule(started_s)
            output = runner.launch(plan).result()
            ended_s = clock.now_s()
            if number > 0:
                step_cost.observe(plan.load(), ended_s - started_s)
            scheduler.update(plan, output, ended_s)


def _restore_versions(
    adapters: AdapterStore, data: DataFolder, library: Library, metrics: ReplicaMetrics
) -> None:
    """Serve what was active when the process last ended, and hold what could be rolled back to."""
    held, active = data.decisions.held(), data.decisions.active()
    for num_done, (adapter, version) in enumerate(active.items()):
        num_needed = len(active) - num_done
        if adapter in held and adapters.num_free_slots > num_needed:
            _restore(adapters, library, adapter, held[adapter])
        _restore(adapters, library, adapter, version)
        if (serving := adapters.active(adapter)) is not None:
            metrics.promoted(adapter, serving)


def _restore(adapters: AdapterStore, library: Library, adapter: str, version: VersionId) -> None:
    try:
        published, state = library.load(version)
        if not adapters.try_stage(adapter, version, state, dict(published.metadata)):
            raise AdapterError("no slot is free; raise lora.num_slots")
        adapters.promote(version)
    except AdapterError as error:
        serving = adapters.active(adapter) or "nothing"
        _log.error("%s is not served, %s in its place: %s", version, serving, error)


def _calibration(step_cost: StepCostModel, quantum_cost: QuantumCostModel) -> dict[str, object]:
    """Return how often the predicted bounds on times held, ready for JSON."""
    quanta = {str(kind): quantum_cost.calibration(kind) for kind in QuantumKind}
    seen = {kind: asdict(found) for kind, found in quanta.items() if found.num_observed}
    return {"step": asdict(step_cost.calibration), "quanta": seen}


class _Jobs:
    """Opens training jobs: from their checkpoint, else from the version that is served."""

    def __init__(
        self,
        settings: ReplicaSettings,
        decoder: Decoder,
        tokenizer: Tokenizer,
        adapters: AdapterStore,
        data: DataFolder,
        quantum_cost: QuantumCostModel,
        base_digest: str,
    ) -> None:
        self._settings = settings
        self._base_digest = base_digest
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._adapters = adapters
        self._data = data
        self._quantum_cost = quantum_cost

    def open(self, config: JobConfig, datasets: Mapping[str, Conversations]) -> Job:
        settings = self._settings
        if config.rank > settings.lora.max_rank:
            raise ConfigError(
                f"training.jobs: adapter {config.adapter!r} has rank {config.rank}; "
                f"lora.max_rank allows up to {settings.lora.max_rank}"
            )
        samples = prepare_samples(
            datasets[config.adapter],
            self._tokenizer,
            max_tokens=config.micro_batch_tokens,
            held_out_share=config.held_out_share,
            max_held_out=config.max_held_out,
        )
        if samples.num_unusable:
            _log.warning("%s: %d samples left out", config.adapter, samples.num_unusable)
        job = Job(
            config,
            self._decoder,
            self._start(config),
            samples.training,
            samples.held_out,
            self._quantum_cost,
            settings.pacing.max_quantum_s,
            settings.training.activations,
        )
        checkpoint = self._data.checkpoints.load(config.adapter)
        if checkpoint is not None:
            if checkpoint.meta.get(CHECKPOINT_BASE) != self._base_digest:
                raise ConfigError(
                    f"the training state of {config.adapter!r} in {settings.replica.data_dir} was "
                    "written for another base model; use another replica.data_dir"
                )
            job.restore(load_file(checkpoint.folder / CHECKPOINT_FILE), checkpoint.meta)
            _log.info("%s goes on at step %d", config.adapter, job.num_steps)
        return job

    def _start(self, config: JobConfig) -> AdapterState:
        layout = lora_layout(self._decoder.spec, config.rank)
        active = self._adapters.active(config.adapter)
        return (
            initial_state(layout, config.seed) if active is None else self._adapters.state(active)
        )
