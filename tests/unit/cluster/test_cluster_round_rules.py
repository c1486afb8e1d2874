import pytest
from hypothesis import given
from hypothesis import strategies as st

from collm.cluster.round_rules import (
    GRACE_S,
    PATIENCE_S,
    MemberState,
    Move,
    choose_members,
    is_behind,
    newest_updates,
    next_gate_move,
    next_move,
    num_judged,
    num_needed,
    why_left_out,
)
from collm.gate.config import GateConfig
from collm.store.rounds import MemberOutcome, MemberRecord
from collm.types import BASE, VersionId
from factories.fake_members import DIGEST, snapshot

OPEN, REPORTED, DECLINED, FAILED = (
    MemberOutcome.OPEN,
    MemberOutcome.REPORTED,
    MemberOutcome.DECLINED,
    MemberOutcome.FAILED,
)


def move(*outcomes: MemberOutcome, left_s: float = 30.0, silent_s: float = 0.0) -> Move:
    states = [MemberState(outcome, silent_s) for outcome in outcomes]
    return next_move(states, quorum_share=0.5, left_s=left_s, grace_s=GRACE_S)


@pytest.mark.parametrize(
    ("num_members", "share", "needed"),
    [(1, 0.5, 1), (2, 0.5, 1), (3, 0.5, 2), (30, 0.1, 3), (4, 1.0, 4), (0, 0.5, 1), (3, 0.01, 1)],
)
def test_quorum_is_rounded_up_and_at_least_one(num_members: int, share: float, needed: int) -> None:
    assert num_needed(num_members, share) == needed


def test_everyone_is_waited_for_before_the_deadline_though_a_quorum_is_there() -> None:
    assert move(REPORTED, REPORTED, OPEN) is Move.WAIT
    assert move(REPORTED, REPORTED, REPORTED) is Move.ENOUGH


def test_who_is_open_at_the_deadline_is_hurried_and_then_not_waited_for() -> None:
    assert move(REPORTED, OPEN, left_s=0.0) is Move.HURRY
    assert move(REPORTED, OPEN, left_s=-GRACE_S) is Move.ENOUGH
    assert move(REPORTED, OPEN, OPEN, left_s=-GRACE_S) is Move.TOO_FEW


def test_silent_member_is_waited_for_only_while_its_update_is_needed() -> None:
    assert move(REPORTED, OPEN, silent_s=PATIENCE_S) is Move.ENOUGH
    assert move(REPORTED, OPEN, OPEN, silent_s=PATIENCE_S) is Move.WAIT


def test_no_time_is_lost_once_no_quorum_is_possible() -> None:
    assert move(FAILED, FAILED, OPEN) is Move.TOO_FEW
    assert move(DECLINED, DECLINED) is Move.TOO_FEW


def test_declined_members_lower_the_quorum_and_failed_ones_do_not() -> None:
    assert move(REPORTED, DECLINED, DECLINED) is Move.ENOUGH
    assert move(REPORTED, FAILED, FAILED) is Move.TOO_FEW


def gate_move(*outcomes: MemberOutcome, left_s: float) -> Move:
    states = [MemberState(outcome, 0.0) for outcome in outcomes]
    return next_gate_move(states, quorum_share=0.5, left_s=left_s, deadline_s=10.0)


def test_all_judge_before_the_deadline_and_a_quorum_is_enough_from_then_on() -> None:
    assert gate_move(REPORTED, REPORTED, OPEN, left_s=0.1) is Move.WAIT
    assert gate_move(REPORTED, REPORTED, OPEN, left_s=0.0) is Move.ENOUGH


def test_too_few_judgements_are_waited_for_beyond_the_deadline_while_more_may_come() -> None:
    assert gate_move(REPORTED, OPEN, OPEN, left_s=0.0) is Move.WAIT
    assert gate_move(REPORTED, OPEN, OPEN, left_s=-39.0) is Move.WAIT
    assert gate_move(REPORTED, REPORTED, OPEN, left_s=-39.0) is Move.ENOUGH
    assert gate_move(REPORTED, OPEN, OPEN, left_s=-40.0) is Move.TOO_FEW
    assert gate_move(FAILED, FAILED, OPEN, left_s=-1.0) is Move.TOO_FEW


@given(
    st.lists(st.tuples(st.sampled_from(list(MemberOutcome)), st.floats(0.0, 100.0))),
    st.floats(0.01, 1.0),
    st.floats(-100.0, 100.0),
)
def test_enough_means_a_quorum_and_grace_ends_all_waiting(
    members: list[tuple[MemberOutcome, float]], share: float, left_s: float
) -> None:
    states = [MemberState(*member) for member in members]
    found = next_move(states, quorum_share=share, left_s=left_s, grace_s=GRACE_S)
    outcomes = [outcome for outcome, _ in members]
    needed = num_needed(len(members) - outcomes.count(DECLINED), share)
    if found is Move.ENOUGH:
        assert outcomes.count(REPORTED) >= needed
    if left_s <= -GRACE_S:
        assert found in (Move.ENOUGH, Move.TOO_FEW)
    if found is Move.WAIT:
        assert OPEN in outcomes


@pytest.mark.parametrize(
    ("num_judges", "num_samples"), [(1, 128), (2, 128), (3, 86), (8, 32), (11, 24), (100, 24)]
)
def test_judges_share_what_two_would_compare_down_to_what_one_needs(
    num_judges: int, num_samples: int
) -> None:
    gate = GateConfig(min_samples=24, max_samples=128)
    assert num_judged(gate, num_judges) == num_samples


def part(member: str, number: int, used_in: int | None = None) -> MemberRecord:
    return MemberRecord(
        adapter="ours",
        round=number,
        member=member,
        outcome=REPORTED,
        report={},
        reason=None,
        used_in=used_in,
    )


def test_only_the_newest_update_of_a_member_counts_and_only_once() -> None:
    parts = [part("b", 3), part("a", 2), part("a", 3), part("c", 1, used_in=1), part("d", 1)]
    found = [(it.member, it.round) for it in newest_updates(parts)]
    assert found == [("a", 3), ("b", 3), ("d", 1)]
    assert newest_updates([part("a", 2), part("a", 3, used_in=3)]) == ()


def test_members_serve_one_base_model_and_are_there_to_stay() -> None:
    live = {
        "a": snapshot("a"),
        "b": snapshot("b", base_digest="other"),
        "c": snapshot("c", is_draining=True),
        "d": snapshot("d"),
    }
    cast = choose_members(live, None, 2)
    assert cast is not None
    assert (cast.members, cast.base_digest) == (("a", "d"), DIGEST)
    assert why_left_out(live, cast) == {
        "b": "it serves another base model",
        "c": "it is about to stop",
    }
    other = choose_members(live, "other", 1)
    assert other is not None
    assert other.members == ("b",)
    assert choose_members(live, None, 3) is None
    assert choose_members({}, None, 0) is None


@pytest.mark.parametrize(
    ("active", "expected"),
    [
        (None, True),
        ("ours@2", True),
        ("ours@3", False),
        ("ours@3.a.7", False),
        ("ours@30", True),
        ("ours@2.a.9", True),
    ],
)
def test_replica_is_behind_unless_it_serves_the_version_or_what_grew_from_it(
    active: str | None, expected: bool
) -> None:
    assert is_behind(VersionId(active) if active else None, VersionId("ours@3")) is expected


@pytest.mark.parametrize(
    ("active", "expected"), [(None, False), ("ours@3", True), ("ours@3.a.7", False)]
)
def test_replica_is_behind_the_base_while_it_serves_a_federated_version(
    active: str | None, expected: bool
) -> None:
    assert is_behind(VersionId(active) if active else None, BASE) is expected
