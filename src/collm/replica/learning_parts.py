"""What learns: versions and jobs taken up from the data folder, and who decides about them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from collm.chats import Sample
from collm.clock import Clock
from collm.errors import ModelError, RequestError
from collm.metrics.exporter import ReplicaMetrics
from collm.model.checkpoint import Checkpoint
from collm.model.tokenizer import Tokenizer
from collm.replica.allotments import Allotments
from collm.replica.archive import Archive
from collm.replica.board import Board
from collm.replica.deciders import DecisionLimits, Surroundings, build_deciders
from collm.replica.engine_parts import EngineParts
from collm.replica.inbox import Inbox
from collm.replica.job_builder import JobBuilder, conversation_of
from collm.replica.learner import Learner
from collm.replica.library import Library
from collm.replica.outlook import LONE_REPLICA, Outlook
from collm.replica.restore import (
    restore_jobs,
    restore_results,
    restore_versions,
    restore_watches,
    update_configured_jobs,
)
from collm.replica.retention import Retention
from collm.replica.round_board import RoundBoard
from collm.replica.settings import ReplicaSettings, SampleSets
from collm.replica.version_desk import VersionDesk
from collm.replica.writer import Writer
from collm.store.data_folder import DataFolder
from collm.training.samples import TokenSample, prepare_general
from collm.training.trainer import Trainer
from collm.training.watches import Watches

_log = logging.getLogger(__name__)
_UPKEEP_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskParts:
    """Who reads and writes the data folder."""

    data: DataFolder
    library: Library
    writer: Writer
    archive: Archive


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningParts:
    """Who decides about jobs and versions."""

    trainer: Trainer
    learner: Learner
    versions: VersionDesk
    builder: JobBuilder
    rounds: RoundBoard
    outlook: Outlook
    allotments: Allotments


def build_disk(
    data: DataFolder, checkpoint: Checkpoint, settings: ReplicaSettings, inbox: Inbox
) -> DiskParts:
    """Make what reads and writes the data folder."""
    library = Library(
        data.versions,
        checkpoint.spec,
        settings.base_model,
        checkpoint.base_digest(settings.quantization),
        settings.name,
    )
    writer = Writer(Retention(data, inbox, settings.replica).sweep, _UPKEEP_INTERVAL_S)
    archive = Archive(data, library, inbox, writer)
    return DiskParts(data=data, library=library, writer=writer, archive=archive)


def build_learning(
    engine: EngineParts,
    disk: DiskParts,
    settings: ReplicaSettings,
    samples: SampleSets,
    metrics: ReplicaMetrics,
    board: Board,
    clock: Clock,
) -> LearningParts:
    """Take up versions and jobs, and make what decides about them.

    Raises:
        ConfigError, DataError: A job of the configuration file cannot be trained.
    """
    restore_versions(engine.adapters, disk.data, disk.library, metrics)
    trainer, name = Trainer((), clock), settings.name or LONE_REPLICA
    deciders = build_deciders(
        trainer,
        _watches(engine, settings),
        Surroundings(
            adapters=engine.adapters,
            archive=disk.archive,
            metrics=metrics,
            board=board,
            clock=clock,
        ),
        _limits(settings),
        engine.pacing.credit,
        name,
    )
    builder = _builder(engine, disk, settings, samples)
    update_configured_jobs(disk.data, settings.training.jobs)
    restore_watches(deciders.watches, disk.data)
    restore_results(disk.data)
    restore_jobs(deciders.jobs, builder, disk.data)
    return LearningParts(
        trainer=trainer,
        learner=deciders.learner,
        versions=deciders.versions,
        builder=builder,
        rounds=deciders.rounds,
        outlook=Outlook(
            name,
            engine,
            settings.pacing,
            disk.library.base_digest,
            deciders.jobs.qualities,
            deciders.jobs.learning,
            trainer.joint_watches,
            metrics.totals,
            deciders.allotments,
        ),
        allotments=deciders.allotments,
    )


def _limits(settings: ReplicaSettings) -> DecisionLimits:
    return DecisionLimits(
        min_promotion_interval_s=settings.replica.min_promotion_interval_s,
        slot_wait_s=settings.replica.slot_wait_s,
        checkpoint_interval_s=settings.training.checkpoint_interval_s,
    )


def _watches(engine: EngineParts, settings: ReplicaSettings) -> Watches:
    return Watches(
        engine.decoder,
        engine.pacing.quantum_cost,
        settings.pacing.max_quantum_s,
        settings.training.gate.watch_error,
    )


def _builder(
    engine: EngineParts, disk: DiskParts, settings: ReplicaSettings, samples: SampleSets
) -> JobBuilder:
    general = _general(engine.tokenizer, samples.general, settings.training.max_general)
    return JobBuilder(
        decoder=engine.decoder,
        tokenizer=engine.tokenizer,
        data=disk.data,
        library=disk.library,
        datasets=samples.by_name,
        general=general,
        training=settings.training,
        replica=settings.name or LONE_REPLICA,
        sizes=engine.pacing.quantum_cost,
        max_quantum_s=settings.pacing.max_quantum_s,
    )


def _general(
    tokenizer: Tokenizer, samples: Sequence[Sample], max_samples: int
) -> tuple[TokenSample, ...]:
    """Return general text as tokens; none, with a warning, for a model that can only be served."""
    conversations = [conversation_of(sample) for sample in samples]
    try:
        return prepare_general(conversations, tokenizer, max_samples=max_samples)
    except (RequestError, ModelError) as error:
        _log.warning(
            "chats cannot be trained on with this model, so training.general_data is not used "
            "(null says so without this warning): %s",
            error,
        )
        return ()
