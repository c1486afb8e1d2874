"""A version that rounds promoted is taken back when users' feedback says so."""

import asyncio

import pytest

from collm.cluster.members import Members
from collm.cluster.spreading import Spreader
from collm.cluster.taking_back import TakingBack
from collm.gate.trial import is_proven
from collm.gate.watch import REGRESSION
from collm.store.decisions import Decision, DecisionKind
from collm.store.front_folder import FrontFolder
from collm.types import BASE, VersionId, WatchState
from factories.fake_members import FakeCluster, FakeMember, FakeTime
from factories.rounds import ADAPTER, Rounds, coordinator

ONE, TWO = VersionId("ours@1"), VersionId("ours@2")
ERROR = 0.01


def learn(cluster: FakeCluster, folder: FrontFolder, num_rounds: int) -> None:
    rounds = Rounds(cluster, folder)
    for _ in range(num_rounds):
        rounds.run()


def note(member: FakeMember, capital: float, **changes: object) -> None:
    """Let a member have found something about the second version."""
    values: dict[str, object] = {
        "active": TWO,
        "previous": ONE,
        "capital": capital,
        "num_samples": 12,
        "active_loss": 2.5,
        "previous_loss": 1.5,
    }
    member.watched[ADAPTER] = WatchState(**(values | changes))  # type: ignore[arg-type]


def look(cluster: FakeCluster, folder: FrontFolder) -> None:
    members: Members = cluster.view()
    spreader = Spreader(members, folder, FakeTime().timing())
    asyncio.run(TakingBack(members, folder, spreader, {}).look({ADAPTER: ERROR}))


def latest(folder: FrontFolder) -> Decision:
    return folder.decisions.history(ADAPTER)[-1]


def test_what_a_member_proves_worse_is_taken_back_everywhere_and_on_record(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    learn(cluster, folder, 2)
    note(cluster.members["a"], capital=400.0)
    look(cluster, folder)
    assert folder.decisions.active() == {ADAPTER: ONE}
    row = latest(folder)
    assert (row.kind, row.version, row.previous) == (DecisionKind.ROLLBACK, ONE, TWO)
    assert row.reason == REGRESSION
    assert row.numbers["evidence"] >= 1 / ERROR
    assert row.numbers["members"]["a"]["num_samples"] == row.numbers["num_samples"] == 12
    for member in cluster.members.values():
        version, reason, numbers = member.reasons[-1]
        assert (member.active[ADAPTER], version, reason) == (ONE, ONE, REGRESSION)
        assert member.causes[-1] == "regression"
        assert numbers == row.numbers
        assert not is_proven(numbers), "what is returned to is not watched"
    look(cluster, folder)
    assert folder.decisions.active() == {ADAPTER: ONE}, "of the version before it nothing is known"


def test_a_first_version_is_taken_back_to_the_base(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    learn(cluster, folder, 1)
    for member in cluster.members.values():
        note(member, 20.0, active=ONE, previous=BASE)
    look(cluster, folder)
    assert folder.decisions.active() == {}
    assert {member.reasons[-1][:2] for member in cluster.members.values()} == {(BASE, REGRESSION)}
    assert {member.causes[-1] for member in cluster.members.values()} == {"regression"}


def test_what_somebody_takes_back_is_brought_as_that(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    learn(cluster, folder, 2)
    spreader = Spreader(cluster.view(), folder, FakeTime().timing())
    asyncio.run(TakingBack(cluster.view(), folder, spreader, {}).roll_back(ADAPTER))
    for member in cluster.members.values():
        assert (member.active[ADAPTER], member.causes[-1]) == (ONE, "asked")


@pytest.mark.parametrize("capitals", [(140.0, 1.0), (0.01, 380.0), (13.0, 13.0)])
def test_what_is_not_proven_by_all_of_them_stays(
    folder: FrontFolder, cluster: FakeCluster, capitals: tuple[float, float]
) -> None:
    """The first two would do if there were one member alone; the third is not enough together."""
    learn(cluster, folder, 2)
    for member, capital in zip(cluster.members.values(), capitals, strict=True):
        note(member, capital)
    cluster.members["c"] = FakeMember("c", active={ADAPTER: TWO})
    look(cluster, folder)
    assert folder.decisions.active() == {ADAPTER: TWO}


def test_a_loss_that_is_not_finite_needs_no_statistics(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    learn(cluster, folder, 2)
    note(cluster.members["b"], capital=1.0, is_finite=False)
    look(cluster, folder)
    assert folder.decisions.active() == {ADAPTER: ONE}
    assert latest(folder).numbers["is_finite"] is False


def test_what_is_found_about_other_versions_does_not_count(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    learn(cluster, folder, 2)
    a, b = cluster.members.values()
    note(a, 1e9, active=ONE, previous=BASE)  # it has not caught up
    note(b, 1e9, previous=BASE)  # it was away for the first version
    look(cluster, folder)
    assert folder.decisions.active() == {ADAPTER: TWO}


def test_nothing_is_taken_back_without_one_before_it(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    learn(cluster, folder, 3)
    folder.decisions.rollback(TWO, "asked for", {})
    note(cluster.members["a"], 1e9)
    look(cluster, folder)
    assert folder.decisions.active() == {ADAPTER: TWO}


def test_a_running_coordinator_looks_by_itself(folder: FrontFolder, cluster: FakeCluster) -> None:
    learn(cluster, folder, 2)
    config = Rounds(cluster, folder).config
    timing = FakeTime().timing()

    async def main() -> None:
        running = asyncio.create_task(coordinator(cluster, folder, timing, config).run())
        note(cluster.members["a"], capital=1e9)
        async with asyncio.timeout(60.0):
            while latest(folder).reason != REGRESSION:
                await asyncio.sleep(0.002)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_who_was_away_is_told_by_what_numbers_it_is_served(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    learn(cluster, folder, 2)
    cluster.members["c"] = late = FakeMember("c")

    async def main() -> None:
        running = asyncio.create_task(coordinator(cluster, folder, FakeTime().timing()).run())
        async with asyncio.timeout(60.0):
            while not late.reasons:
                await asyncio.sleep(0.002)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
    (told,) = late.reasons
    assert told[:2] == (TWO, "caught up")
    assert is_proven(told[2]), "it is to be watched there too"
