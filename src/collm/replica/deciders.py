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


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all deciders work with, and none of them owns."""

    adapters: AdapterStore
    archive: Archive
    metrics: ReplicaMetrics
    board: Board
    clock: Clock


@dataclass(slots=True, kw_only=True)
class _Followers:
    """Who hears of a swap: training first, then the board, then whoever asked for it."""

    watches: WatchDesk
    rounds: RoundMember
    jobs: JobDesk
    board: Board
    learner: Learner | None = None
    """Comes last, as it is built upon the promotions that tell of swaps."""

    def follow(self, swap: Swap) -> None:
        """Tell them."""
        self.watches.follow(swap)
        events = self.rounds.follow(swap)
        if events is None:
            self.jobs.follow(swap)
        else:
            assert self.learner is not None
            self.learner.handle(events)
        self.board.refresh()


def build_deciders(
    trainer: Trainer,
    watches: Watches,
    around: Surroundings,
    limits: DecisionLimits,
    credit: Credit,
    name: str = "replica",
) -> Deciders:
    """Make them, wired to each other; ``name`` is the replica's."""
    adapters, archive, clock = around.adapters, around.archive, around.clock
    jobs = JobDesk(trainer, adapters, archive, around.metrics, around.board.refresh)
    watch_desk = WatchDesk(trainer, watches, adapters)
    board = RoundBoard()
    rounds = RoundMember(name, trainer, archive, board, clock)
    followers = _Followers(watches=watch_desk, rounds=rounds, jobs=jobs, board=around.board)
    promotions = _promotions(around, followers, limits)
    versions = _versions(around, followers, promotions, trainer)
    allotments = Allotments(trainer, credit, clock)
    followers.learner = Learner(
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
        learner=followers.learner,
        versions=versions,
        watches=watch_desk,
        rounds=board,
        allotments=allotments,
    )


def _promotions(around: Surroundings, followers: _Followers, limits: DecisionLimits) -> Promotions:
    return Promotions(
        around.adapters,
        around.archive,
        around.metrics,
        around.clock,
        on_swap=followers.follow,
        min_interval_s=limits.min_promotion_interval_s,
        slot_wait_s=limits.slot_wait_s,
    )


def _versions(
    around: Surroundings, followers: _Followers, promotions: Promotions, trainer: Trainer
) -> VersionDesk:
    return VersionDesk(
        promotions,
        around.adapters,
        around.archive,
        around.metrics,
        is_training=followers.jobs.is_training,
        on_swap=followers.follow,
        on_unload=trainer.unwatch,
        on_change=around.board.refresh,
    )
