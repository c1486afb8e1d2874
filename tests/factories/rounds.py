"""One adapter's rounds over fake members."""

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

from collm.cluster.aggregating import Aggregation
from collm.cluster.coordinator import Coordinator
from collm.cluster.round_config import RoundConfig
from collm.cluster.round_machine import RoundMachine
from collm.cluster.round_path import RoundObserver
from collm.cluster.spreading import Spreader
from collm.cluster.timing import Timing
from collm.federated.rounds import RoundPlan, RoundStatus
from collm.store.front_folder import FrontFolder
from collm.store.rounds import RoundRecord
from factories.fake_members import DIGEST, FakeAggregator, FakeCluster, FakeTime
from factories.waiting import WAIT_S

ADAPTER = "ours"


def open_folder(path: Path, max_versions: int = 4) -> FrontFolder:
    """Open the front's folder with a clock that stands still."""
    return FrontFolder(path, max_versions=max_versions, now_s=lambda: 0.0)


class Rounds:
    """A machine and what it works with; make a new one for what a restarted process has."""

    def __init__(
        self,
        cluster: FakeCluster,
        folder: FrontFolder,
        config: RoundConfig | None = None,
        within_s: float = 2.0,
        observers: Sequence[RoundObserver] = (),
    ) -> None:
        self.config = config or RoundConfig(adapter=ADAPTER, deadline_s=60.0)
        self.cluster = cluster
        self.folder = folder
        self.time = FakeTime()
        self.aggregator = FakeAggregator()
        members, timing = cluster.view(), self.time.timing()
        self.spreader = Spreader(members, folder, timing, within_s=within_s)
        self.machine = RoundMachine(
            self.config,
            members,
            folder,
            timing,
            aggregation=Aggregation(
                self.config,
                folder,
                self.aggregator,
                base_model="tiny",
                demand=lambda adapter, member: 0.0,
            ),
            spreader=self.spreader,
            is_promoting=asyncio.Lock(),
            observers=observers,
        )

    def start(self) -> RoundRecord:
        """Put the next round on record, for all members."""
        journal = self.folder.rounds
        plan = RoundPlan(
            adapter=ADAPTER,
            round=journal.next_round(ADAPTER),
            members=tuple(sorted(self.cluster.members)),
            base_version=self.folder.decisions.active().get(ADAPTER),
            max_tokens=1000,
            deadline_s=self.config.deadline_s,
        )
        return journal.start(
            ADAPTER,
            plan.round,
            RoundStatus.PLANNED,
            plan=plan.to_json(),
            base_digest=DIGEST,
            members=plan.members,
        )

    def run(self) -> RoundRecord:
        """Run the round that is under way, or the next one, to its end."""
        record = self.folder.rounds.resume().get(ADAPTER) or self.start()
        return asyncio.run(self.machine.run(record))

    def outcomes(self, number: int) -> dict[str, str]:
        """Return what became of each member's part in a round."""
        parts = self.folder.rounds.members(ADAPTER, number)
        return {part.member: part.outcome.value for part in parts}


def coordinator(
    cluster: FakeCluster,
    folder: FrontFolder,
    timing: Timing,
    *configs: RoundConfig,
    wanted: Collection[str] = (),
) -> Coordinator:
    """Return a coordinator over fake members, those ``wanted`` asked first."""
    members = cluster.view()
    return Coordinator(
        configs,
        members,
        folder,
        FakeAggregator(),
        timing,
        base_model="tiny",
        demand=lambda adapter, member: 0.0,
        spreader=Spreader(members, folder, timing, within_s=WAIT_S),
        wanted=lambda adapter: wanted,
    )
