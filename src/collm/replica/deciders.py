"""Who decides about jobs and versions in the step loop's thread, wired to each other."""

from dataclasses import dataclass

from collm.clock import Clock
from collm.lora.store import AdapterStore
from collm.metrics.exporter import ReplicaMetrics
from collm.pacing.credit import Credit
from collm.replica.allotments import Allotments
from collm.replica.archive import Archive
from collm.replica.board import Board
from collm.replica.jobs import JobDesk
from collm.replica.learner import Learner
from collm.replica.promotions import Promotions
from collm.replica.round_board import RoundBoard
from collm.replica.round_member import RoundMember
from collm.replica.swap import Swap
from collm.replica.version_desk import VersionDesk
from collm.replica.watch_desk import WatchDesk
from collm.training.trainer import Trainer
from collm.training.watches import Watches


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLimits:
    """Times that decisions keep to, from the configuration."""

    min_promotion_interval_s: float
    slot_wait_s: float
    checkpoint_interval_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciders:
    """Used by the step loop's thread alone, once it runs."""

    jobs: JobDesk
    learner: Learner
    versions: VersionDesk
    watches: WatchDesk
    rounds: RoundBoard
    """What was found for others; any thread may read it."""
    allotments: Allotments


def build_deciders(
    trainer: Trainer,
    watches: Watches,
    adapters: AdapterStore,
    archive: Archive,
    metrics: ReplicaMetrics,
    board: Board,
    clock: Clock,
    limits: DecisionLimits,
    credit: Credit,
    name: str = "replica",
) -> Deciders:
    """Make them; a swap reaches training first, then the board, then whoever asked for it.

    ``name`` is the replica's.
    """
    jobs = JobDesk(trainer, adapters, archive, metrics, board.refresh)
    watch_desk = WatchDesk(trainer, watches, adapters)
    round_board = RoundBoard()
    rounds = RoundMember(name, trainer, archive, round_board, clock)

    def on_swap(swap: Swap) -> None:
        watch_desk.follow(swap)
        events = rounds.follow(swap)
        if events is None:
            jobs.follow(swap)
        else:
            learner.handle(events)
        board.refresh()

    promotions = Promotions(
        adapters,
        archive,
        metrics,
        clock,
        on_swap=on_swap,
        min_interval_s=limits.min_promotion_interval_s,
        slot_wait_s=limits.slot_wait_s,
    )
    versions = VersionDesk(
        promotions,
        adapters,
        archive,
        metrics,
        is_training=jobs.is_training,
        on_swap=on_swap,
        on_unload=trainer.unwatch,
        on_change=board.refresh,
    )
    allotments = Allotments(trainer, credit, clock)
    learner = Learner(
        trainer,
        jobs,
        rounds,
        promotions,
        archive,
        allotments,
        clock,
        on_regression=versions.regressed,
        checkpoint_interval_s=limits.checkpoint_interval_s,
    )
    return Deciders(
        jobs=jobs,
        learner=learner,
        versions=versions,
        watches=watch_desk,
        rounds=round_board,
        allotments=allotments,
    )
