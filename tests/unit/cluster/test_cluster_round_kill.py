"""A front killed between any two things it does goes on with the round, or ends it cleanly."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from collm.federated.rounds import RoundStatus
from collm.store.database import Database
from collm.store.front_folder import FrontFolder
from factories.fake_members import NAN, FakeCluster, FakeMember
from factories.killed_process import acknowledged_before_line
from factories.round_writer import new_cluster
from factories.rounds import ADAPTER, Rounds, open_folder

REAL = Database.transaction


class Killed(RuntimeError):
    pass


class Killer:
    """Ends the process, as it were, at the k-th transaction: before or after it is committed."""

    def __init__(self, at: int, *, is_after: bool) -> None:
        self.at = at
        self.is_after = is_after
        self.num_begun = 0
        self.is_dead = False
        self._counting = Lock()

    @contextmanager
    def transaction(self, database: Database) -> Iterator[Any]:
        with self._counting:  # one at a time, so that nothing is written after the kill
            self.num_begun += 1
            is_last = self.num_begun == self.at
            if self.is_dead or (is_last and not self.is_after):
                self.is_dead = True
                raise Killed
            with REAL(database) as connection:
                yield connection
            if is_last:
                self.is_dead = True
                raise Killed


def cluster() -> FakeCluster:
    bad = FakeMember("c", content=NAN)
    return FakeCluster(FakeMember("a", content=b"a"), FakeMember("b", content=b"b"), bad)


def run(path: Path, replicas: FakeCluster, killer: Killer) -> bool:
    """Run the round that is under way, or a new one; return whether it came to its end."""
    with open_folder(path) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "transaction", lambda self: killer.transaction(self))
        try:
            Rounds(replicas, folder).run()
        except Killed:
            return False
        return True


def check(folder: FrontFolder, replicas: FakeCluster) -> None:
    """Check that one round was run to its end, once, and that all agree on what came of it."""
    (record,) = folder.rounds.latest(ADAPTER, 10)
    assert (record.status, record.candidate) == (RoundStatus.DONE, "ours@1")
    assert [it.version for it in folder.versions.published()] == ["ours@1"]
    assert folder.decisions.active() == {ADAPTER: "ours@1"}
    assert [it.version for it in folder.decisions.history(ADAPTER)] == ["ours@1"]
    assert record.results["aggregation"]["refused"] == {"c": "not finite"}
    outcomes = {it.member: (it.outcome, it.used_in) for it in folder.rounds.members(ADAPTER, 1)}
    assert outcomes == {"a": ("reported", 1), "b": ("reported", 1), "c": ("refused", None)}
    for member in replicas.members.values():
        assert member.active == {ADAPTER: "ours@1"}
        assert [plan.round for plan in member.plans] == [1]  # nobody trained twice


def num_transactions(path: Path) -> int:
    killer = Killer(10**9, is_after=False)
    assert run(path, cluster(), killer)
    return killer.num_begun


def test_round_killed_at_any_write_to_the_journal_goes_on(tmp_path: Path) -> None:
    total = num_transactions(tmp_path / "whole")
    assert total >= 9  # start, three reports, five steps, and what publishing and promoting write
    for at in range(1, total + 1):
        for is_after in (False, True):
            path, replicas = tmp_path / f"{at}-{is_after}", cluster()
            assert not run(path, replicas, Killer(at, is_after=is_after))
            assert run(path, replicas, Killer(10**9, is_after=False)) or is_after
            with open_folder(path) as folder:
                if at == total and is_after:  # it had ended already: a second round was run
                    assert len(folder.rounds.latest(ADAPTER, 10)) == 2
                    continue
                check(folder, replicas)


def test_round_killed_at_every_third_write_goes_on(tmp_path: Path) -> None:
    replicas = cluster()
    num_kills = 0
    while not run(tmp_path, replicas, Killer(3, is_after=False)):
        num_kills += 1
        assert num_kills < 50
    assert num_kills >= 3
    with open_folder(tmp_path) as folder:
        check(folder, replicas)


@pytest.mark.parametrize("line", sorted(random.Random(4).sample(range(1, 2200), 6)))
def test_killed_process_leaves_a_round_that_goes_on(tmp_path: Path, line: int) -> None:
    acknowledged = acknowledged_before_line("round_writer", tmp_path, line)
    with open_folder(tmp_path) as folder:
        rounds = Rounds(new_cluster(), folder)  # the members were killed too: all is forgotten
        for text in acknowledged:
            _, number, status = text.split()
            assert folder.rounds.get(ADAPTER, int(number)).status == status
        known = len(acknowledged)
        assert rounds.run().status in (RoundStatus.DONE, RoundStatus.REFUSED)
        statuses = [record.status for record in folder.rounds.latest(ADAPTER, 1000)]
        assert len(statuses) in (known, known + 1, known + 2)
        active = folder.decisions.active()[ADAPTER]
        assert folder.versions.get(active).folder.is_dir()
        for member in rounds.cluster.members.values():
            assert member.active[ADAPTER] == active
    assert not list(tmp_path.rglob(".new-*"))
    assert not list(tmp_path.rglob(".work-*"))
