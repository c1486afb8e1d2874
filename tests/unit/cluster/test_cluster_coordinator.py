import asyncio
from collections.abc import Awaitable, Callable

import pytest

from collm.clock import MonotonicClock
from collm.cluster.coordinator import Coordinator
from collm.cluster.round_config import RoundConfig
from collm.cluster.timing import Timing
from collm.errors import StateError, UnknownAdapterError
from collm.federated.rounds import RoundStatus
from collm.store.decisions import DecisionKind
from collm.store.front_folder import FrontFolder
from collm.types import BASE, VersionId
from factories.fake_members import DIGEST, FakeCluster, FakeMember
from factories.rounds import ADAPTER, Rounds, coordinator

CONFIG = RoundConfig(adapter=ADAPTER, max_rounds=2)
_FASTER = 100.0


async def doze(seconds: float) -> None:
    await asyncio.sleep(seconds / _FASTER)


TIMING = Timing(MonotonicClock(), lambda: 0.0, doze)


def run_until(
    coordinator: Coordinator,
    is_done: Callable[[], bool],
    then: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """Run a coordinator until something holds; fail when it ends, or after a minute."""

    async def main() -> None:
        running = asyncio.create_task(coordinator.run())
        async with asyncio.timeout(60.0):
            while not is_done():
                assert not running.done()
                await asyncio.sleep(0.002)
            if then is not None:
                await then()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def statuses(folder: FrontFolder) -> list[str]:
    return [record.status for record in reversed(folder.rounds.latest(ADAPTER, 100))]


def test_rounds_follow_each_other_until_there_were_enough(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    run_until(coordinator(cluster, folder, TIMING, CONFIG), lambda: len(statuses(folder)) == 2)
    run_until(
        coordinator(cluster, folder, TIMING, CONFIG), lambda: statuses(folder) == ["done"] * 2
    )
    assert folder.decisions.active() == {ADAPTER: "ours@2"}


def test_no_round_begins_before_enough_replicas_are_live(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    cluster.members["b"].is_live = False
    looks = 0

    def is_patient() -> bool:
        nonlocal looks
        looks += 1
        if looks == 20:
            assert statuses(folder) == []
            cluster.members["b"].is_live = True
        return "done" in statuses(folder)

    run_until(coordinator(cluster, folder, TIMING, CONFIG), is_patient)


def test_only_those_whom_the_allocation_wants_train_when_they_are_enough(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    cluster.members["c"] = FakeMember("c")
    wanting = coordinator(cluster, folder, TIMING, CONFIG, wanted=("a", "c", "gone"))
    run_until(wanting, lambda: bool(statuses(folder)))
    assert folder.rounds.get(ADAPTER, 1).plan["members"] == ["a", "c"]


def test_everybody_trains_when_too_few_of_the_wanted_are_live(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    wanting = coordinator(cluster, folder, TIMING, CONFIG, wanted=("b", "gone"))
    run_until(wanting, lambda: bool(statuses(folder)))
    assert folder.rounds.get(ADAPTER, 1).plan["members"] == ["a", "b"]


def test_replica_that_comes_back_catches_up_by_itself(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    Rounds(cluster, folder).run()
    cluster.members["c"] = new = FakeMember("c")
    run_until(coordinator(cluster, folder, TIMING), lambda: bool(new.active))
    assert new.active == {ADAPTER: "ours@1"}
    assert cluster.members["a"].promotions == ["ours@1"]  # nobody else is troubled


def test_replica_restarted_with_an_older_version_catches_up(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    rounds = Rounds(cluster, folder)
    rounds.run()
    b = cluster.members["b"]
    b.is_live = False
    rounds.run()
    assert b.active == {ADAPTER: "ours@1"}

    async def wake() -> None:
        b.is_live = True
        while b.active[ADAPTER] != "ours@2":
            await asyncio.sleep(0.002)

    run_until(coordinator(cluster, folder, TIMING), lambda: True, wake)


def test_replica_that_comes_back_is_not_among_the_others_until_it_has_caught_up(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    Rounds(cluster, folder).run()
    coordinating = coordinator(cluster, folder, TIMING)
    may_promote = asyncio.Event()
    back = FakeMember("c", before_promote=may_promote.wait)
    cluster.members |= {"c": back, "d": FakeMember("d", base_digest="e" * 64)}

    async def catch_up() -> None:
        may_promote.set()
        while coordinating.caught_up(ADAPTER) != {"a", "b", "c", "d"}:
            await asyncio.sleep(0.002)
        assert back.active == {ADAPTER: "ours@1"}

    assert coordinating.caught_up(ADAPTER) is None
    run_until(coordinating, lambda: coordinating.caught_up(ADAPTER) == {"a", "b", "d"}, catch_up)


def test_replica_that_takes_long_to_catch_up_holds_up_nobody_else(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    Rounds(cluster, folder).run()
    slow, new = FakeMember("c", before_promote=asyncio.Event().wait), FakeMember("d")
    cluster.members |= {"c": slow, "d": new}
    run_until(coordinator(cluster, folder, TIMING), lambda: bool(new.active))
    assert not slow.active


def test_replica_does_not_catch_up_with_what_is_replaced_meanwhile(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    rounds = Rounds(cluster, folder)
    for _ in range(2):
        rounds.run()
    folder.decisions.rollback("ours@1", "asked for", {})
    num_asked, is_busy = 0, True

    async def be_busy() -> None:
        nonlocal num_asked
        num_asked += 1
        if is_busy:
            raise StateError("another promotion is under way")

    cluster.members["c"] = member = FakeMember("c", before_promote=be_busy)

    async def replace() -> None:
        nonlocal is_busy
        folder.decisions.promote("ours@2", "better", {})
        is_busy = False
        while not member.active:
            await asyncio.sleep(0.002)

    run_until(coordinator(cluster, folder, TIMING), lambda: num_asked > 2, replace)
    assert member.promotions == ["ours@2"]


def test_rollback_on_one_replica_alone_is_not_undone_while_it_stays(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    rounds = Rounds(cluster, folder)
    rounds.run()
    rounds.run()
    a, coordinating = cluster.members["a"], coordinator(cluster, folder, TIMING)

    async def roll_back_alone() -> None:
        await asyncio.sleep(0.05)
        a.active[ADAPTER] = folder.versions.published()[0].version
        await asyncio.sleep(0.05)
        assert a.active == {ADAPTER: "ours@1"}
        assert coordinating.caught_up(ADAPTER) == {"a", "b"}

    run_until(coordinating, lambda: True, roll_back_alone)


def test_rollback_reaches_all_replicas_and_is_on_record(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    rounds = Rounds(cluster, folder)
    rounds.run()
    rounds.run()
    spread = asyncio.run(coordinator(cluster, folder, TIMING).roll_back(ADAPTER))
    assert (spread.reached, spread.is_partial) == (("a", "b"), False)
    assert folder.decisions.active() == {ADAPTER: "ours@1"}
    assert {member.active[ADAPTER] for member in cluster.members.values()} == {"ours@1"}


def test_version_that_somebody_asks_for_reaches_all_replicas_and_those_that_come_back(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    rounds = Rounds(cluster, folder)
    for _ in range(3):
        rounds.run()
    b = cluster.members["b"]
    b.is_live = False
    spread = asyncio.run(coordinator(cluster, folder, TIMING).promote(VersionId("ours@1")))
    assert (spread.version, spread.reached) == ("ours@1", ("a",))
    b.is_live = True
    run_until(coordinator(cluster, folder, TIMING), lambda: b.active[ADAPTER] == "ours@1")
    spread = asyncio.run(coordinator(cluster, folder, TIMING).roll_back(ADAPTER))
    assert spread.version == "ours@3", "it is what was served before"
    assert {member.active[ADAPTER] for member in cluster.members.values()} == {"ours@3"}
    with pytest.raises(UnknownAdapterError):
        asyncio.run(coordinator(cluster, folder, TIMING).promote(VersionId("ours@9")))


def test_first_version_is_taken_back_everywhere_and_rounds_begin_anew_from_the_base(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    rounds = Rounds(cluster, folder)
    rounds.run()
    cluster.members["b"].is_live = False
    spread = asyncio.run(coordinator(cluster, folder, TIMING).roll_back(ADAPTER))
    assert (spread.version, spread.reached) == (BASE, ("a",))
    assert folder.decisions.active() == {}
    assert cluster.members["a"].active == {}
    with pytest.raises(UnknownAdapterError, match="no earlier federated version"):
        asyncio.run(coordinator(cluster, folder, TIMING).roll_back(ADAPTER))
    cluster.members["b"].is_live = True
    rounds.run()
    assert cluster.members["a"].plans[-1].base_version is None
    assert folder.decisions.active() == {ADAPTER: "ours@2"}


def test_version_that_was_never_anybodys_first_cannot_be_taken_back_to_the_base(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    rounds = Rounds(cluster, folder)
    for _ in range(3):
        rounds.run()
    asyncio.run(coordinator(cluster, folder, TIMING).roll_back(ADAPTER))
    with pytest.raises(UnknownAdapterError, match="no earlier federated version"):
        asyncio.run(coordinator(cluster, folder, TIMING).roll_back(ADAPTER))
    assert folder.decisions.active() == {ADAPTER: "ours@2"}


def test_replica_that_was_away_when_the_first_version_was_taken_back_returns_to_the_base(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    Rounds(cluster, folder).run()
    b = cluster.members["b"]
    b.is_live = False
    asyncio.run(coordinator(cluster, folder, TIMING).roll_back(ADAPTER))
    assert b.active == {ADAPTER: "ours@1"}
    b.is_live = True
    run_until(coordinator(cluster, folder, TIMING), lambda: not b.active)


def test_round_of_an_adapter_that_is_no_longer_configured_is_abandoned(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    Rounds(cluster, folder).start()
    run_until(coordinator(cluster, folder, TIMING), lambda: statuses(folder) == ["abandoned"])


def test_abandoned_rounds_follow_each_other_ever_more_slowly(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    for member in cluster.members.values():
        member.failure = "no"
    naps: list[float] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)
        await asyncio.sleep(0.0)

    timing = Timing(MonotonicClock(), lambda: 0.0, nap)
    config = RoundConfig(adapter=ADAPTER, interval_s=1.0)
    run_until(
        coordinator(cluster, folder, timing, config),
        lambda: len([nap_s for nap_s in naps if nap_s >= 2.0]) >= 4,
    )
    assert [nap_s for nap_s in naps if nap_s >= 2.0][:4] == [2.0, 3.0, 5.0, 9.0]


def test_step_that_fails_is_tried_again(
    folder: FrontFolder, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = folder.updates.save, iter([OSError("disk full")])

    def fail_once(*arguments: object) -> None:
        for failure in failures:
            raise failure
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(folder.updates, "save", fail_once)
    run_until(
        coordinator(cluster, folder, TIMING, CONFIG), lambda: statuses(folder)[:1] == ["done"]
    )


def test_candidate_that_members_refused_is_told_with_its_numbers(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    rounds = Rounds(cluster, folder)
    rounds.run()
    for member in cluster.members.values():
        member.increase = 0.5
    refused = rounds.run()
    coordinating = coordinator(cluster, folder, TIMING, CONFIG)
    (row,) = coordinating.refusals(ADAPTER)
    assert (row.kind, row.version, row.previous) == (DecisionKind.REFUSAL, "ours@2", "ours@1")
    assert row.reason == "slice worse in round 2"
    assert row.numbers == refused.results["gate"]
    rounds.run()
    assert [one.version for one in coordinating.refusals(ADAPTER, 1)] == ["ours@3"]
    assert coordinating.refusals("another") == ()


def test_status_shows_versions_rounds_and_members(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    cluster.members["c"] = FakeMember("c", failure="out of memory")
    Rounds(cluster, folder).run()
    status = coordinator(cluster, folder, TIMING, CONFIG).status()
    assert status[ADAPTER]["active"] == "ours@1"
    (shown,) = status[ADAPTER]["rounds"]
    assert (shown["status"], shown["candidate"]) == (RoundStatus.DONE, "ours@1")
    assert [part["reason"] for part in shown["members"]] == [None, None, "out of memory"]
    assert shown["members"][0]["report"]["num_tokens"] == 100


def test_round_has_on_record_who_was_not_asked_and_why(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    cluster.members["c"] = FakeMember("c")
    cluster.members["d"] = FakeMember("d", base_digest="other")
    wanting = coordinator(cluster, folder, TIMING, CONFIG, wanted=("a", "b"))
    run_until(wanting, lambda: bool(statuses(folder)))
    assert folder.rounds.get(ADAPTER, 1).results["planning"]["left_out"] == {
        "c": "the allocation has it do other work",
        "d": "it serves another base model",
    }


def test_status_says_what_keeps_the_next_round_from_beginning(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    running = coordinator(cluster, folder, TIMING, CONFIG)

    def pause() -> str | None:
        shown = running.status()[ADAPTER]["pause"]
        assert shown is None or isinstance(shown, str)
        return shown

    assert pause() is None
    cluster.members["b"].is_live = False
    assert pause() == "a round needs 2 replicas of one base model; 1 answer"
    cluster.members["b"].is_live = True
    run_until(running, lambda: statuses(folder) == ["done"] * 2)
    assert pause() == "all 2 rounds are done"


def test_members_are_of_the_base_model_that_the_adapter_was_made_for(
    folder: FrontFolder, cluster: FakeCluster
) -> None:
    Rounds(cluster, folder).run()
    for name in "xyz":
        cluster.members[name] = FakeMember(name, base_digest="other")
    run_until(
        coordinator(cluster, folder, TIMING, CONFIG), lambda: statuses(folder)[1:] == ["done"]
    )
    record = folder.rounds.get(ADAPTER, 2)
    assert (record.plan["members"], record.base_digest) == (["a", "b"], DIGEST)
