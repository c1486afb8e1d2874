import asyncio
from pathlib import Path

import pytest

from collm.cluster.round_config import RoundConfig
from collm.cluster.round_path import RoundPath
from collm.errors import RoundError, StateError
from collm.federated.rounds import RoundStatus
from collm.store.front_folder import FrontFolder
from factories.fake_members import NAN, FakeCluster, FakeMember
from factories.rounds import ADAPTER, Rounds


def members(count: int) -> list[FakeMember]:
    return [FakeMember(name, content=name.encode()) for name in "abcdefgh"[:count]]


def test_round_ends_with_the_aggregate_served_everywhere(folder: FrontFolder) -> None:
    a, b = members(2)
    record = Rounds(FakeCluster(a, b), folder).run()
    assert (record.status, record.candidate) == (RoundStatus.DONE, "ours@1")
    assert record.results["promotion"] == {
        "reached": ["a", "b"],
        "missed": {},
        "is_partial": False,
    }
    assert a.active == b.active == folder.decisions.active() == {ADAPTER: "ours@1"}
    assert a.versions[record.candidate].weights == b"ab"
    assert folder.versions.get(record.candidate).metadata["members"] == "a, b"


def test_second_round_trains_from_what_the_first_made(folder: FrontFolder) -> None:
    a, b = members(2)
    rounds = Rounds(FakeCluster(a, b), folder)
    rounds.run()
    assert rounds.run().candidate == "ours@2"
    assert [plan.base_version for plan in a.plans] == [None, "ours@1"]
    base = rounds.aggregator.plans[1].base
    assert base is not None
    assert base.read_bytes() == b"ab"


def test_aggregate_is_made_as_the_round_is_configured(folder: FrontFolder) -> None:
    config = RoundConfig(adapter=ADAPTER, strategy="fedavg", rank=4, server_rate=1.5)
    rounds = Rounds(FakeCluster(*members(2)), folder, config)
    rounds.run()
    (plan,) = rounds.aggregator.plans
    assert (plan.strategy, plan.rank, plan.server_rate) == ("fedavg", 4, 1.5)


def test_four_members_compare_as_many_samples_together_as_two(folder: FrontFolder) -> None:
    for count in (2, 4):
        asked = members(count)
        record = Rounds(FakeCluster(*asked), folder).run()
        assert record.status == RoundStatus.DONE
        assert sum(member.gates[record.round].max_samples for member in asked) == 256


def test_round_goes_on_without_a_member_that_died(folder: FrontFolder) -> None:
    a, b, c = members(3)
    c.is_live = False
    rounds = Rounds(FakeCluster(a, b, c), folder)
    record = rounds.run()
    assert record.status == RoundStatus.DONE
    assert rounds.outcomes(1) == {"a": "reported", "b": "reported", "c": "dead"}
    assert rounds.time.clock.now_s() < rounds.config.deadline_s


def test_round_without_a_quorum_is_abandoned_and_says_who_is_missing(folder: FrontFolder) -> None:
    a, b, c = members(3)
    b.failure, c.refusal = "out of memory", StateError("busy")
    rounds = Rounds(FakeCluster(a, b, c), folder)
    record = rounds.run()
    assert record.status == RoundStatus.ABANDONED
    assert record.reason is not None
    assert "b failed (out of memory)" in record.reason
    assert rounds.outcomes(1) == {"a": "reported", "b": "failed", "c": "failed"}
    assert folder.decisions.active() == {}


def test_members_that_decline_do_not_count_for_the_quorum(folder: FrontFolder) -> None:
    cast = members(4)
    for member in cast[1:]:
        member.refusal = RoundError("no such job")
    rounds = Rounds(FakeCluster(*cast), folder)
    assert rounds.run().status == RoundStatus.DONE
    assert list(rounds.outcomes(1).values()) == ["reported", "declined", "declined", "declined"]


def test_unfinished_member_reports_what_it_has_at_the_deadline(folder: FrontFolder) -> None:
    a, b = members(2)
    b.num_polls = 10**9
    rounds = Rounds(FakeCluster(a, b), folder)
    assert rounds.run().status == RoundStatus.DONE
    (_, part) = folder.rounds.members(ADAPTER, 1)
    assert part.report is not None
    assert part.report["is_complete"] is False
    assert 60.0 <= rounds.time.clock.now_s() < 62.0


def test_late_update_is_a_stale_one_of_the_next_round(folder: FrontFolder) -> None:
    a, b, c = members(3)
    c.num_polls, c.is_deaf = 10**9, True
    rounds = Rounds(FakeCluster(a, b, c), folder)
    rounds.run()
    assert rounds.outcomes(1)["c"] == "late"
    c.num_polls, c.refusal = 0, RoundError("no more")  # what it owes is done; it joins no other
    rounds.run()
    assert rounds.outcomes(1)["c"] == "reported"
    stale = next(item for item in rounds.aggregator.plans[1].updates if item.member == "c")
    assert (stale.staleness, stale.trained_from) == (1, None)
    assert folder.rounds.members(ADAPTER, 1)[2].used_in == 2


def test_late_update_is_left_out_when_its_member_has_a_newer_one(folder: FrontFolder) -> None:
    a, b, c = members(3)
    c.num_polls, c.is_deaf = 10**9, True
    rounds = Rounds(FakeCluster(a, b, c), folder)
    rounds.run()
    c.num_polls = 0
    rounds.run()
    assert [item.staleness for item in rounds.aggregator.plans[1].updates] == [0, 0, 0]
    assert folder.rounds.members(ADAPTER, 1)[2].used_in is None


def test_updates_of_an_abandoned_round_are_used_in_the_next(folder: FrontFolder) -> None:
    a, b, c = members(3)
    b.failure = c.failure = "no"
    rounds = Rounds(FakeCluster(a, b, c), folder)
    rounds.run()
    a.refusal, b.failure, c.failure = RoundError("no more"), None, None
    b.restart()
    c.restart()
    assert rounds.run().status == RoundStatus.DONE
    staleness = {item.member: item.staleness for item in rounds.aggregator.plans[0].updates}
    assert staleness == {"a": 0, "b": 0, "c": 0}  # nothing was promoted since


def test_non_finite_update_is_refused_and_named(folder: FrontFolder) -> None:
    a, b, c = members(3)
    b.content = NAN
    rounds = Rounds(FakeCluster(a, b, c), folder)
    record = rounds.run()
    assert record.status == RoundStatus.DONE
    assert record.results["aggregation"]["refused"] == {"b": "not finite"}
    part = folder.rounds.members(ADAPTER, 1)[1]
    assert (part.outcome, part.reason, part.used_in) == ("refused", "not finite", None)


def test_round_of_refused_updates_alone_is_abandoned(folder: FrontFolder) -> None:
    a, b = members(2)
    a.content = b.content = NAN
    record = Rounds(FakeCluster(a, b), folder).run()
    assert record.status == RoundStatus.ABANDONED
    assert record.reason == "too few usable updates: a: not finite; b: not finite"
    assert folder.versions.published() == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"member": "b"}, "reports for b"),
        ({"round": 7}, "round 7"),
        ({"digest": "0" * 64}, "another digest"),
    ],
)
def test_update_that_is_not_what_was_said_fails(
    folder: FrontFolder, changes: dict[str, object], reason: str
) -> None:
    a, b = members(2)
    a.report_changes = changes
    rounds = Rounds(FakeCluster(a, b), folder)
    rounds.run()
    (part, _) = folder.rounds.members(ADAPTER, 1)
    assert part.outcome == "failed"
    assert part.reason is not None
    assert reason in part.reason


def test_member_that_restarts_is_asked_again_for_the_time_left(folder: FrontFolder) -> None:
    a, b = members(2)
    a.num_polls = b.num_polls = 8
    rounds = Rounds(FakeCluster(a, b), folder)
    polls = 0
    real = b.round_report

    async def forget_once(adapter: str, number: int) -> object:
        nonlocal polls
        polls += 1
        if polls == 5:
            b.restart()
        return await real(adapter, number)

    b.round_report = forget_once  # type: ignore[method-assign, assignment]
    assert rounds.run().status == RoundStatus.DONE
    assert rounds.outcomes(1)["b"] == "reported"
    assert [plan.deadline_s for plan in b.plans] == [60.0, 59.0]


def test_candidate_that_is_not_better_is_refused_and_nothing_changes(folder: FrontFolder) -> None:
    a, b = members(2)
    a.increase = b.increase = 0.0
    record = Rounds(FakeCluster(a, b), folder).run()
    assert (record.status, record.reason) == (RoundStatus.REFUSED, "not_shown")
    assert record.results["gate"]["num_samples"] == 80
    assert a.active == b.active == folder.decisions.active() == {}


def test_refused_candidate_does_not_free_its_number(folder: FrontFolder) -> None:
    a, b = members(2)
    rounds = Rounds(FakeCluster(a, b), folder)
    a.increase = b.increase = 0.0
    rounds.run()
    a.increase = b.increase = -1.0
    assert rounds.run().candidate == "ours@2"


def test_candidate_that_ruins_one_member_is_refused(folder: FrontFolder) -> None:
    a, b = members(2)
    a.increase, b.increase = -2.0, 0.5
    assert Rounds(FakeCluster(a, b), folder).run().status == RoundStatus.REFUSED


def test_round_is_abandoned_when_too_few_judge(folder: FrontFolder) -> None:
    a, b = members(2)
    config = RoundConfig(adapter=ADAPTER, quorum_share=1.0)

    async def refuse(plan: object) -> None:
        raise RoundError("no held-out samples")

    b.start_gate = refuse  # type: ignore[method-assign, assignment]
    record = Rounds(FakeCluster(a, b), folder, config).run()
    assert record.status == RoundStatus.ABANDONED
    assert record.reason == "too few members judged the candidate: b: no held-out samples"


def test_promotion_that_misses_a_live_replica_is_partial(folder: FrontFolder) -> None:
    a, b = members(2)

    async def hang() -> None:
        await asyncio.Event().wait()

    b.before_promote = hang
    record = Rounds(FakeCluster(a, b), folder, within_s=0.2).run()
    assert record.status == RoundStatus.DONE
    assert record.results["promotion"]["reached"] == ["a"]
    assert record.results["promotion"]["is_partial"]
    assert "within 0.2 s" in record.results["promotion"]["missed"]["b"]


def test_promotion_also_reaches_replicas_outside_the_round(folder: FrontFolder) -> None:
    a, b, late = FakeMember("a"), FakeMember("b"), FakeMember("z", is_live=False)
    rounds = Rounds(FakeCluster(a, b), folder)
    rounds.start()
    rounds.cluster.members["z"] = late
    late.is_live = True
    record = rounds.run()
    assert record.results["promotion"]["reached"] == ["a", "b", "z"]
    assert late.active == {ADAPTER: "ours@1"}


def test_replica_of_another_base_model_is_not_promoted_on(folder: FrontFolder) -> None:
    a, b = members(2)
    rounds = Rounds(FakeCluster(a, b), folder)
    rounds.start()
    rounds.cluster.members["z"] = FakeMember("z", base_digest="other")
    assert rounds.run().results["promotion"]["reached"] == ["a", "b"]


def test_busy_replica_is_asked_to_promote_until_it_can(folder: FrontFolder) -> None:
    a, b = members(2)
    refusals = iter([StateError("another version is being promoted")] * 3)

    async def busy() -> None:
        for refusal in refusals:
            raise refusal

    b.before_promote = busy
    record = Rounds(FakeCluster(a, b), folder).run()
    assert record.results["promotion"]["reached"] == ["a", "b"]


@pytest.mark.parametrize(
    ("num_before", "reason", "active"),
    [
        (2, "ours@1 became active meanwhile, instead of ours@2", {ADAPTER: "ours@1"}),
        (1, "the base became active meanwhile, instead of ours@1", {}),
    ],
)
def test_candidate_is_not_promoted_over_what_became_active_meanwhile(
    folder: FrontFolder, num_before: int, reason: str, active: dict[str, str]
) -> None:
    a, b = members(2)
    rounds = Rounds(FakeCluster(a, b), folder)
    for _ in range(num_before):
        rounds.run()
    real = a.start_gate

    async def rolled_back_meanwhile(plan: object) -> None:
        held = folder.decisions.held().get(ADAPTER)
        if held is None:
            folder.decisions.return_to_base(ADAPTER, "asked for", {})
        else:
            folder.decisions.rollback(held, "asked for", {})
        await real(plan)  # type: ignore[arg-type]

    a.start_gate = rolled_back_meanwhile  # type: ignore[method-assign, assignment]
    record = rounds.run()
    assert (record.status, record.reason) == (RoundStatus.ABANDONED, reason)
    assert folder.decisions.active() == active


def test_files_of_old_rounds_are_removed(folder: FrontFolder, tmp_path: Path) -> None:
    rounds = Rounds(FakeCluster(*members(2)), folder)
    for _ in range(5):
        rounds.run()
    kept = sorted(path.name for path in (tmp_path / "rounds" / ADAPTER).iterdir())
    assert kept == ["3", "4", "5"]
    assert not list(tmp_path.rglob(".work-*"))


def test_observers_are_told_what_a_round_went_through(folder: FrontFolder) -> None:
    paths: list[RoundPath] = []
    a, b = members(2)
    rounds = Rounds(FakeCluster(a, b), folder, observers=[paths.append])
    record = rounds.run()
    (path,) = paths
    assert path.record == record
    assert [stage.name for stage in path.stages] == [
        "planned",
        "training",
        "aggregating",
        "gating",
        "promoting",
    ]
    assert all(stage.started_at_s <= stage.ended_at_s for stage in path.stages)
    assert [(part.member, part.outcome) for part in path.members] == [
        ("a", "reported"),
        ("b", "reported"),
    ]
