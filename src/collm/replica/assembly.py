"""Building a replica: engine, data folder, learning, loop, wired once at start-up."""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from collm.clock import MonotonicClock
from collm.errors import AdapterError, ConfigError
from collm.lora.terms import check_adapter_name
from collm.metrics.exporter import ReplicaMetrics
from collm.metrics.traces import NoTraces, Traces
from collm.model.checkpoint import Checkpoint
from collm.ops.native import library as kernels
from collm.pacing.quanta import QuantumKind
from collm.replica.adapters import AdapterDesk
from collm.replica.board import Board
from collm.replica.client import Deliveries, ReplicaClient
from collm.replica.courtesy import Courtesy
from collm.replica.device import find_device
from collm.replica.engine_parts import EngineParts, PacingParts, build_engine, warm_up_engine
from collm.replica.feedback import FeedbackDesk
from collm.replica.fine_tuning import FineTuning, slots_for
from collm.replica.inbox import Inbox, Stop
from collm.replica.learning_parts import DiskParts, LearningParts, build_disk, build_learning
from collm.replica.loop import StepLoop
from collm.replica.post import Post
from collm.replica.process_memory import resident_bytes
from collm.replica.request_log import RequestLog
from collm.replica.round_desk import RoundDesk
from collm.replica.settings import ReplicaSettings, SampleSets
from collm.replica.threads import on_passing_thread
from collm.replica.uploads import Uploads
from collm.replica.writer import Writer
from collm.store.data_folder import DataFolder
from collm.store.names import check_name
from collm.training.passes import warm_up

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A running replica."""

    client: ReplicaClient
    uploads: Uploads
    fine_tuning: FineTuning
    feedback: FeedbackDesk
    adapters: AdapterDesk
    rounds: RoundDesk
    inbox: Inbox
    thread: threading.Thread
    writer: Writer
    data: DataFolder
    pacing: PacingParts
    """The loop's; others may read what it has learned of times."""

    def close(self) -> None:
        """End the loop after its current step, finish writing, and let go of the data folder."""
        self.inbox.put(Stop())
        self.thread.join()
        self.writer.close()
        self.data.close()


def claim_data(settings: ReplicaSettings) -> DataFolder:
    """Lock and open the data folder; nobody should wait for a model to hear that it is in use.

    Raises:
        ConfigError: It cannot be had, the adapters that shall learn cannot be served, or the device
            to compute on is not there.
    """
    _check_adapters(settings)
    find_device(settings.replica.device)
    return DataFolder(
        Path(settings.replica.data_dir),
        max_versions=settings.replica.max_versions,
        now_s=time.time,
        owner=settings.name,
    )


def open_replica(
    checkpoint: Checkpoint,
    settings: ReplicaSettings,
    samples: SampleSets,
    data: DataFolder,
    traces: Traces | None = None,
) -> Replica:
    """Load a checkpoint, take up what the data folder holds, and start the step loop.

    Args:
        checkpoint: The base model.
        settings: Every room's configuration.
        samples: What the configuration names as data.
        data: What ``claim_data`` returned; the replica's own from now on.
        traces: Where the paths of requests go; ``None`` shows none.

    Raises:
        ModelError: The checkpoint cannot be served.
        ConfigError: A setting does not fit the model or the machine.
        DataError: A job has too few usable samples.
    """
    try:
        return on_passing_thread(
            lambda: _wire(checkpoint, settings, samples, data, traces or NoTraces())
        )
    except BaseException:
        data.close()
        raise


def _check_adapters(settings: ReplicaSettings) -> None:
    """Raise ``ConfigError`` when learning adapters could not be named, or would not fit."""
    jobs, lora = settings.training.jobs, settings.lora
    for job in jobs:
        try:
            check_adapter_name(job.adapter, settings.base_model)
            check_name("adapter name", job.adapter)
        except AdapterError as error:
            raise ConfigError(f"training.jobs: {error}") from error
        if job.rank > lora.max_rank:
            raise ConfigError(
                f"training.jobs: adapter {job.adapter!r} has rank {job.rank}; "
                f"lora.max_rank allows up to {lora.max_rank}"
            )
    num_needed = slots_for(len(jobs))
    if jobs and lora.num_slots < num_needed:
        raise ConfigError(
            f"lora.num_slots is {lora.num_slots}; {len(jobs)} training.jobs need at least "
            f"{num_needed}: each one active and one held version, and one for the next to come"
        )


def _wire(
    checkpoint: Checkpoint,
    settings: ReplicaSettings,
    samples: SampleSets,
    data: DataFolder,
    traces: Traces,
) -> Replica:
    """Make every part and start the threads."""
    _choose_hardware(settings)
    clock, inbox, deliveries = MonotonicClock(), Inbox(), Deliveries()
    metrics = ReplicaMetrics(settings.base_model, settings.pacing)
    engine = build_engine(checkpoint, settings)
    metrics.describe_cache(engine.memory.block_size, engine.memory.num_blocks)
    metrics.show_credit(lambda: engine.pacing.credit.share)
    board = Board(engine.scheduler, engine.blocks, engine.adapters, metrics, clock)
    disk = build_disk(data, checkpoint, settings, inbox)
    learning = build_learning(engine, disk, settings, samples, metrics, board, clock)
    log = RequestLog(metrics, settings.pacing, engine.pacing.credit, traces)
    _show(board, log, learning, engine, metrics)
    warm_up_engine(engine, settings.base_model, clock)
    warm_up(engine.decoder)
    board.describe_by(learning.outlook.look)
    loop = StepLoop(
        scheduler=engine.scheduler,
        runner=engine.runner,
        trainer=learning.trainer,
        learner=learning.learner,
        versions=learning.versions,
        budget=engine.pacing.budget,
        step_cost=engine.pacing.step_cost,
        log=log,
        metrics=metrics,
        inbox=inbox,
        publish=deliveries.publish,
        board=board,
        clock=clock,
    )
    thread = threading.Thread(
        target=_run,
        args=(loop, deliveries, torch.get_num_threads()),
        name="collm-loop",
        daemon=True,
    )
    client = ReplicaClient(
        base_model=settings.base_model,
        max_model_len=engine.memory.max_model_len,
        tokenizer=engine.tokenizer,
        inbox=inbox,
        deliveries=deliveries,
        board=board,
        metrics=metrics,
        thread=thread,
        clock=clock,
    )
    replica = _replica(client, engine, disk, learning, settings, board, inbox, thread)
    disk.writer.start()
    thread.start()
    return replica


def _choose_hardware(settings: ReplicaSettings) -> None:
    """Compute from now on by the threads and kernels that are asked for, if any are."""
    if settings.replica.threads is not None:
        torch.set_num_threads(settings.replica.threads)
    if settings.replica.kernels != "auto":
        kernels.choose(settings.replica.kernels)


def _replica(
    client: ReplicaClient,
    engine: EngineParts,
    disk: DiskParts,
    learning: LearningParts,
    settings: ReplicaSettings,
    board: Board,
    inbox: Inbox,
    thread: threading.Thread,
) -> Replica:
    """Make what asyncio uses of the parts."""
    config, archive, post = settings.replica, disk.archive, Post(inbox, thread)

    def new_courtesy() -> Courtesy:
        return Courtesy(is_busy=lambda: bool(board.view.numbers["running"]))

    return Replica(
        client=client,
        uploads=Uploads(disk.data, archive, new_courtesy),
        fine_tuning=FineTuning(
            disk.data,
            archive,
            post,
            learning.builder,
            engine.terms,
            settings.lora.num_slots,
            new_courtesy,
        ),
        feedback=FeedbackDesk(
            disk.data, archive, inbox, learning.builder, config.max_feedback_chars
        ),
        adapters=AdapterDesk(
            disk.data,
            disk.library,
            archive,
            post,
            board,
            engine.terms,
            engine.decoder.spec,
            config.import_root,
        ),
        rounds=RoundDesk(
            disk.data,
            disk.library,
            archive,
            post,
            learning.rounds,
            engine.terms,
            engine.decoder.spec,
            lambda: board.state,
        ),
        inbox=inbox,
        thread=thread,
        writer=disk.writer,
        data=disk.data,
        pacing=engine.pacing,
    )


def _show(
    board: Board,
    log: RequestLog,
    learning: LearningParts,
    engine: EngineParts,
    metrics: ReplicaMetrics,
) -> None:
    """Let the board show live figures."""
    board.show("finished", lambda: log.num_finished)
    board.show("failed", lambda: log.num_failed)
    board.show("mixed", lambda: log.num_mixed)
    board.show("adapters", learning.learner.snapshot)
    board.show("allocation", learning.allotments.snapshot)
    board.show("kernels", kernels.explain)
    board.show("weight_bytes", lambda: engine.decoder.weights.num_bytes)
    board.show("resident_bytes", resident_bytes)
    board.show("loop_seconds", metrics.times.seconds)
    board.show("serving", lambda: _serving(metrics))
    board.show("quanta", metrics.times.quanta)
    board.show("token_gaps", metrics.times.gaps)
    board.show("calibration", lambda: _calibration(engine.pacing))
    board.refresh()


def _serving(metrics: ReplicaMetrics) -> Mapping[str, object]:
    """Return how requests fared, ready for JSON."""
    counts = {
        name: {
            "ended": one.num_ended,
            "met": one.num_met,
            "output_tokens": one.num_output_tokens,
        }
        for name, one in metrics.totals.adapters.items()
    }
    return {**metrics.service.show(), "adapters": counts}


def _calibration(pacing: PacingParts) -> Mapping[str, object]:
    """Return how often the predicted bounds on times held, ready for JSON."""
    quanta = {str(kind): pacing.quantum_cost.calibration(kind) for kind in QuantumKind}
    seen = {kind: asdict(found) for kind, found in quanta.items() if found.num_observed}
    return {"step": asdict(pacing.step_cost.calibration), "quanta": seen}


def _run(loop: StepLoop, deliveries: Deliveries, num_threads: int) -> None:
    """Run the loop to its end on ``num_threads``, and let nobody wait for it any longer.

    What escapes the loop would leave requests, blocks or versions in an unknown state, so it ends
    the replica: the server sees the dead thread, and exits with an error.
    """
    # Others take one for themselves, which torch would hand on to threads that begin later.
    torch.set_num_threads(num_threads)
    try:
        loop.run()
    except Exception:
        _log.exception("the step loop failed")
    finally:
        deliveries.end()
